//! Where clicks land and frames lie, on a real browser.

use belljar_proto::{Browse, Problem};

use super::{
    bench::{Bench, click, no_pages, with_browser},
    events::WAKING,
};

#[test]
fn a_click_that_would_hit_something_else_is_kept_from_the_page() {
    with_browser(no_pages, async |bench| {
        bench
            .show(
                "<style>button { position: absolute; top: 0 } #b { left: 300px }</style>\
                 <button id=a onclick='done.push(\"a\")'>A</button><button id=b onclick='done.push(\"b\")'>B</button>\
                 <script>let moves = 0; const done = [];\
                 for (const type of ['pointerdown', 'mousedown']) b.addEventListener(type, () => done.push(type));\
                 addEventListener('mousemove', () => { if (++moves === 1) [a.style.left, b.style.left] = ['300px', '0'] })</script>",
            )
            .await;
        bench.click("#a").await;
        assert_eq!(bench.value("done.join()").await, "a");
        bench
            .show(
                "<style>button { position: absolute; top: 0; left: 0 }</style><button id=a>A</button><button id=b>B</button>\
                 <script>const done = []; b.hidden = true; b.onclick = () => done.push('b');\
                 addEventListener('mousemove', () => { b.hidden = false });\
                 addEventListener('mouseup', () => done.push('up'))</script>",
            )
            .await;
        let problem = bench.try_do(click("#a")).await.unwrap_err();
        assert!(matches!(&problem, Problem::Covered { by, .. } if by.starts_with("button#b")), "{problem:?}");
        assert_eq!(bench.value("done.join()").await, "");
        bench.click("#b").await;
        assert_eq!(bench.value("done.join()").await, "up,b");
    });
}

#[test]
fn frames_are_shown_where_they_are_whenever_they_came() {
    with_browser(no_pages, async |bench| {
        let frame =
            |name: &str| format!("<iframe title={name} srcdoc='<button>in {name}</button>'></iframe>");
        let script = "top1.innerHTML = FIRST; host.attachShadow({ mode: 'closed' }).innerHTML = THIRD";
        let script = script
            .replace("FIRST", &format!("`{}`", frame("first")))
            .replace("THIRD", &format!("`{}`", frame("third")));
        let second = frame("second");
        bench.show(&format!("<div id=top1></div>{second}<div id=host></div><script>{script}</script>")).await;
        bench.ok(Browse::WaitFor { text: None, target: None, url: None, idle: true }).await;
        for _ in 0..2 {
            let elements = bench.elements().await;
            let names: Vec<_> = elements.lines().filter_map(|line| line.split('"').nth(1)).collect();
            assert_eq!(
                names,
                ["first", "in first", "second", "in second", "third", "in third"],
                "{elements}"
            );
            bench
                .ok(Browse::Evaluate {
                    code: "top1.append(document.querySelector('iframe[title=second]'))".into(),
                })
                .await;
            bench
                .ok(Browse::WaitFor { text: Some("in second".into()), target: None, url: None, idle: true })
                .await;
        }
    });
}

#[test]
fn frames_of_documents_that_were_left_are_not_looked_for() {
    let pages = |path: &str| {
        let frame = |n| format!("<iframe title={n} src=/inside?{n}></iframe>");
        let body = match path.split_once('?').map_or((path, ""), |(path, n)| (path, n)) {
            ("/frames", _) => (1..=3).map(frame).collect(),
            ("/inside", n) => format!("<button>in {n}</button>"),
            _ => "<p>nothing".into(),
        };
        Some(("text/html", format!("<!doctype html>{body}")))
    };
    with_browser(pages, async |bench| {
        let frames = |bench: &Bench| {
            let live = bench.actor.live.as_ref().unwrap();
            live.shared.state.borrow().tabs[0].all_frames().len()
        };
        for _ in 0..2 {
            bench.page("/frames").await;
            let elements = bench.elements().await;
            assert!((1..=3).all(|n| elements.contains(&format!("button \"in {n}\""))), "{elements}");
            assert_eq!(frames(bench), 4);
            bench.page("/other").await;
            assert_eq!(frames(bench), 1);
            bench.ok(Browse::Back).await;
            bench
                .ok(Browse::WaitFor { text: Some("in 3".into()), target: None, url: None, idle: true })
                .await;
            assert_eq!(frames(bench), 4);
            assert!(bench.elements().await.contains("button \"in 2\""));
        }
    });
}

#[test]
fn input_that_wakes_the_browser_is_kept_from_the_page() {
    with_browser(no_pages, async |bench| {
        let kinds = "mousemove mouseover mouseout pointermove pointerover wheel";
        let hear = format!(
            "<button id=a>A</button><script>const heard = []; for (const kind of '{kinds}'.split(' '))\
             addEventListener(kind, event => heard.push([kind, event.clientX, event.clientY].join(' ')), true)</script>"
        );
        for _ in 0..2 {
            bench.show(&hear).await;
            bench.snapshot().await;
            bench.ok(Browse::WaitFor { text: None, target: None, url: None, idle: true }).await;
            let (x, y) = WAKING;
            let heard = bench.value("heard.join()").await;
            // Chromium itself tells a new page where its mouse was last.
            assert!(!heard.contains(&format!(" {x} {y}")), "{heard}");
            bench.click("#a").await;
            let heard = bench.value("heard.join()").await;
            assert!(heard.contains("mousemove"), "{heard}");
        }
    });
}

#[test]
fn what_only_counts_is_left_out_and_can_be_used() {
    with_browser(no_pages, async |bench| {
        bench
            .show(
                "<main></main><script>for (let n = 0; n < 30; n++) {\
                 const b = document.querySelector('main').appendChild(document.createElement('button'));\
                 b.textContent = `Buy ${n}`; b.onclick = () => { document.title = `bought ${n}` } }</script>\
                 <p>… 90 lines left out that count on like the 2 above, up to</p>",
            )
            .await;
        let snapshot = bench.snapshot().await;
        assert_eq!(
            snapshot.elements.unwrap().lines().map(str::trim).collect::<Vec<_>>(),
            [
                "main:",
                "[ref_1] button \"Buy 0\"",
                "[ref_2] button \"Buy 1\"",
                "… 27 lines left out that count on like the 2 above, refs too, up to",
                "[ref_30] button \"Buy 29\"",
            ]
        );
        assert_eq!(snapshot.text.unwrap(), "... 90 lines left out that count on like the 2 above, up to");
        for n in [7, 28] {
            let target = format!("ref_{}", n + 1);
            assert_eq!(bench.click(&target).await.title, format!("bought {n}"));
        }
        let find = Browse::Snapshot { max_text: None, find: Some("buy 1".into()), changes: false };
        let found = bench.ok(find).await.elements.unwrap();
        assert_eq!(found.lines().count(), 11, "{found}");
        assert!(found.contains("[ref_18] button \"Buy 17\""), "{found}");
    });
}

#[test]
fn a_click_may_close_its_own_tab() {
    with_browser(no_pages, async |bench| {
        for _ in 0..3 {
            let write = "window.open().document.write(`<button onclick=window.close()>Close</button>`)";
            bench.show(&format!("<button id=a onclick='{write}'>Open</button>")).await;
            let opened = bench.click("#a").await.tabs;
            let last = opened.last().unwrap().index;
            assert_ne!(last, opened[0].index);
            bench.ok(Browse::Tabs { select: Some(last), close: None, open: None }).await;
            bench.click("button").await;
            bench.ok(Browse::Tabs { select: Some(opened[0].index), close: None, open: None }).await;
        }
    });
}

fn two_pages(path: &str) -> Option<(&'static str, String)> {
    let form = "<form action=/there><button id=send>Send</button></form>";
    let body = match path.split('?').next() {
        Some("/here") => format!(
            "<a id=link href=/there>Go</a>{form}<button id=assign onclick=\"location = '/there'\">Assign</button>\
             <button id=script onclick=\"document.querySelector('form').submit()\">Script</button>"
        ),
        Some("/shadow") => format!(
            "<div id=host></div><script>host.attachShadow({{ mode: 'open' }}).innerHTML = '{form}'</script>"
        ),
        Some("/there") => "<title>there</title>arrived".into(),
        _ => return Some(("", "nothing here".into())),
    };
    Some(("text/html", format!("<!doctype html>{body}")))
}

#[test]
fn where_a_click_leads_is_told_however_it_goes_there() {
    with_browser(two_pages, async |bench| {
        for (page, target) in [
            ("/here", "#link"),
            ("/here", "#send"),
            ("/here", "#assign"),
            ("/here", "#script"),
            ("/shadow", "#send"),
        ] {
            bench.page(page).await;
            bench.snapshot().await;
            let went = bench.click(target).await;
            assert!(went.url.contains("/there"), "{page} {target}: {went:?}");
        }
    });
}
