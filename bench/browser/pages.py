"""The pages on which browsers are compared, and what can be used on each: the oracle, written down with the page."""

import collections
import html
import random

WORDS = ("river stone window market garden letter summer engine bridge paper harbor silver morning teacher valley "
         "record copper island winter signal travel forest planet museum orange doctor kitchen railway").split()


class Page:
    """`usable` counts the names of everything that can be clicked or written into, in any frame."""

    def __init__(self, body, usable, *, button, field, rows=0, per_row=0, find=None, head=""):
        self.body, self.head = body, head
        self.usable = collections.Counter(usable)
        self.button, self.field = button, field
        # Alike rows, that may be folded when there are many: how many, what can be used in each, and how to look one up.
        self.rows, self.per_row, self.find = rows, per_row, find
        self.big = rows > 500

    def html(self, title):
        return f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>{self.head}<body>{self.body}"


def sentence(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words)).capitalize() + "."


def login():
    body = """<main><h1>Sign in</h1><form onsubmit="event.preventDefault(); document.title = 'sent'">
      <p><label>Email <input type=email name=email required></label></p>
      <p><label>Password <input type=password name=password required></label></p>
      <p><label><input type=checkbox name=remember> Remember me</label></p>
      <p><button type=button onclick="document.title = 'signed in'">Sign in</button></p></form>
      <p><a href="/forgot">Forgot your password?</a> <a href="/register">Create an account</a></p></main>"""
    usable = ["Email", "Password", "Remember me", "Sign in", "Forgot your password?", "Create an account"]
    return Page(body, usable, button="Sign in", field="Email")


def article():
    rng = random.Random(1)
    links, parts = [], []
    for section in range(8):
        parts.append(f"<h2>Part {section + 1}</h2>")
        for paragraph in range(4):
            name = f"{rng.choice(WORDS)} {section}.{paragraph}"
            links.append(name)
            parts.append(f'<p>{sentence(rng, 25)} <a href="/topics/{section}/{paragraph}">{name}</a> {sentence(rng, 30)} {sentence(rng, 15)}</p>')
    menu = [f"Section {n}" for n in range(8)]
    nav = "".join(f'<li><a href="/section/{n}">{name}</a></li>' for n, name in enumerate(menu))
    body = (f"<nav><ul>{nav}</ul></nav><main><article><h1>On rivers and railways</h1>{''.join(parts)}</article>"
            "<h2>Comment</h2><p><label>Your comment <textarea></textarea></label></p>"
            "<button onclick=\"document.title = 'posted'\">Post comment</button></main>")
    return Page(body, [*links, *menu, "Your comment", "Post comment"], button="Post comment", field="Your comment")


def dashboard():
    rng = random.Random(2)
    menu = ["Overview", "Orders", "Customers", "Products", "Invoices", "Reports", "Team", "Settings", "Help"]
    usable = [*menu, "Search", "Status", "Only mine", "New order", "Export", "Previous", "Next"]
    rows = []
    for n in range(25):
        name = f"{rng.choice(WORDS).capitalize()} {rng.choice(WORDS)}"
        rows.append(f'<tr><td><a href="/orders/{1000 + n}">#{1000 + n}</a></td><td>{name}</td><td>{rng.randrange(10, 900)}.00</td>'
                    f"<td><button>Edit</button> <button>Archive</button></td></tr>")
        usable += [f"#{1000 + n}", "Edit", "Archive"]
    cards = "".join(f"<div class=card><h3>{title}</h3><p>{rng.randrange(1000)}</p></div>" for title in ("Revenue", "Open", "Late", "Returned"))
    nav = "".join(f'<a href="/{name.lower()}">{name}</a> ' for name in menu)
    body = (f"<header><nav aria-label=Main>{nav}</nav></header><main><h1>Orders</h1>{cards}"
            "<p><input type=search aria-label=Search> <select aria-label=Status><option>All<option>Open<option>Late</select>"
            " <label><input type=checkbox> Only mine</label> <button onclick=\"document.title = 'new'\">New order</button> <button>Export</button></p>"
            f"<table><thead><tr><th>Order<th>Customer<th>Total<th>Actions</tr></thead><tbody>{''.join(rows)}</tbody></table>"
            "<p><button>Previous</button> <button>Next</button></p></main>")
    style = "<style>.card{display:inline-block;padding:1em;border:1px solid}td,th{padding:.3em;border-bottom:1px solid #ccc}</style>"
    return Page(body, usable, button="New order", field="Search", head=style)


def frames():
    inner = ("<!doctype html><meta charset=utf-8><title>inner</title><p>Inside</p><label>{0} name <input></label>"
             "<button onclick=\"this.dataset.n = 1\">{0} go</button> <a href=/x>{0} link</a>")
    same = html.escape(inner.format("Same"))
    body = ("<h1>Frames</h1><button onclick=\"document.title = 'pressed'\">Outer go</button> <label>Outer name <input></label>"
            f'<iframe title=Same srcdoc="{same}" width=400 height=150></iframe>'
            "<iframe title=Near src=/inner?Near width=400 height=150></iframe>"
            "<script>document.body.insertAdjacentHTML('beforeend', `<iframe title=Far src='http://localhost:${location.port}/inner?Far' width=400 height=150></iframe>`)</script>")
    usable = ["Outer go", "Outer name"] + [f"{where} {what}" for where in ("Same", "Near", "Far") for what in ("name", "go", "link")]
    page = Page(body, usable, button="Outer go", field="Outer name")
    page.inner = inner
    return page


def shadow():
    cards = [f"Card {n}" for n in range(20)]
    usable = [f"Buy {name}" for name in cards] + ["Find a card", "Check out"]
    body = ("<h1>Cards</h1><label>Find a card <input></label> <button onclick=\"document.title = 'out'\">Check out</button><main></main><script>"
            "customElements.define('shop-card', class extends HTMLElement { connectedCallback() { this.attachShadow({ mode: 'open' }).innerHTML ="
            " `<style>:host{display:inline-block;padding:1em}</style><h2>${this.title}</h2><button>Buy ${this.title}</button>` } });"
            "document.querySelector('main').innerHTML = [...Array(20).keys()].map(n => `<shop-card title='Card ${n}'></shop-card>`).join('')</script>")
    return Page(body, usable, button="Check out", field="Find a card")


def settings():
    fields = [f"Setting {n}" for n in range(60)]
    rows = "".join(f"<p><label for=f{n}>{name}</label> <input id=f{n} value={n}></p>" if n % 3 else
                   f"<p><label for=f{n}>{name}</label> <select id=f{n}><option>On<option>Off</select></p>" for n, name in enumerate(fields))
    body = f"<h1>Settings</h1>{rows}<button onclick=\"document.title = 'saved'\">Save</button> <button>Reset</button>"
    return Page(body, [*fields, "Save", "Reset"], button="Save", field="Setting 1")


TOP = "<label>Filter <input></label> <button onclick=\"document.title = 'counted'\">Count</button>"


def links():
    names = [f"Item number {n} - section {n % 17}" for n in range(1000)]
    items = "".join(f'<li><a href="/item/{n}?ref=list">{name}</a> <small>updated {n % 28 + 1} May</small></li>' for n, name in enumerate(names))
    return Page(f"<h1>Links</h1>{TOP}<ul>{items}</ul>", [*names, "Filter", "Count"], button="Count", field="Filter", rows=1000,
                per_row=1, find="Item number {} ")


def table():
    rows = "".join(f"<tr><td>{n}</td><td>Customer {n}</td><td>c{n}@example.test</td><td>{n * 37 % 1000}.00</td><td><button>Open</button></td></tr>"
                   for n in range(5000))
    body = f"<h1>Customers</h1>{TOP}<table><thead><tr><th>Id<th>Name<th>Mail<th>Total<th></tr></thead><tbody>{rows}</tbody></table>"
    return Page(body, ["Open"] * 5000 + ["Filter", "Count"], button="Count", field="Filter", rows=5000, per_row=1, find="Customer {} ")


PAGES = {
    "login form": login(), "article": article(), "dashboard": dashboard(), "frames": frames(), "shadow DOM": shadow(),
    "60 settings": settings(), "1,000 links": links(), "5,000 rows": table(),
}


def files():
    """Path to content, for whoever serves them."""
    made = {f"/{name.replace(' ', '-').replace(',', '')}": page.html(name) for name, page in PAGES.items()}
    made["/inner"] = PAGES["frames"].inner
    return made


def path(name):
    return f"/{name.replace(' ', '-').replace(',', '')}"


# Runs in a sandbox too, where it has to come without this module: `files` is there already.
SERVER = """
import http.server, threading
class Serve(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        path, _, query = self.path.partition("?")
        body = files.get(path, "<title>none</title>nothing here").replace("{0}", query).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Serve)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""
