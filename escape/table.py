"""The suite's results as a table, for a terminal and for docs/security.md."""

PAGE = """# What was tried, and what stopped it

<!-- Made by `make escape ESCAPE=--docs`. -->

The escape suite tries known ways out of a sandbox, in real sandboxes: from a live interpreter, from a command and from a
process in the background, with a server of root's, with one of an ordinary user, in [containers](docker.md), and from where
a [browser](browser.md) runs. Each line is a file in [escape/probes](../escape/probes) that can be read in a minute.
`make escape` repeats it on your machine.

- **Outside** says whether the same probe succeeded without a sandbox. One that cannot succeed anywhere proves nothing, so
  the suite fails if one does not; a dash means that this machine lacks what the probe needs, which it names. The suite
  looks for that by itself, so a probe that fails where there is what it needs is an error.
- **root** says how the attempt was answered in a sandbox of root's server.
- **user** is an ordinary user's server with delegated cgroups, which the suite makes for it, as a session manager would with
  `Delegate=yes`. **user-plain** is an ordinary user's server without them: that is what you get if you just start it.
- **docker** is a container of the Docker backend, with `runc`. Podman and gVisor are not in this table.
- **browser** is a sandbox of root's server, in the place of Chromium: under the [filter of a browser](threat-model.md#the-layers),
  as it is and in a user and a network namespace of the probe's own, which that filter allows. Tools and networks are not
  tried there.
- Probes of the allow-list run in sandboxes that may reach one host and no other; outside, they meet a careless proxy. Those
  that ask for addresses run a second time in a sandbox whose network is `open`, where there is no list: only the check of
  addresses can refuse them. Those of missing layers start the server on a machine that lacks something it needs.
- **OPEN** marks a known weakness, explained below. The suite fails if there is one that is not listed, and also if
  one is listed that has been closed.

What these layers are, and what they do not stop, is in the [threat model](threat-model.md).

"""


def how(found):
    """One answer for all ways, or each of them where they differ."""
    open_ways = [way for way, result in found.items() if result["escaped"]]
    if open_ways:
        return "**OPEN**"
    answers = {result["answer"] for result in found.values()}
    return ", ".join(sorted(answers)) or "not tried"


def classes(probes):
    by_class = {}
    for name, probe in probes.items():
        by_class.setdefault(probe.CLASS, []).append(name)
    return by_class


def outside(canary):
    return "yes" if canary["escaped"] else f"– ({canary['lacks']})" if canary["lacks"] else "NO"


def for_terminal(probes, canary, attacked, weaknesses):
    lines = [f"{'probe':32} {'outside':8}" + "".join(f" {user:28}" for user in attacked)]
    for name, probe in probes.items():
        cells = [how(found[name]).replace("**", "") for found in attacked.values()]
        lines.append(f"{name:32} {outside(canary[name])[:8]:8}" + "".join(f" {cell[:27]:28}" for cell in cells))
    return "\n".join(line.rstrip() for line in lines)


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def page(probes, canary, attacked, weaknesses):
    text = PAGE
    shown = sum(bool(found["escaped"]) for found in canary.values())
    text += f"{len(probes)} probes; {shown} of them were seen to succeed outside of a sandbox.\n"
    for title, names in classes(probes).items():
        heads = " | ".join(attacked)
        text += f"\n## {title[0].upper() + title[1:]}\n\n| what it tries | where it comes from | stopped by | outside | {heads} |\n"
        text += "|---|---|---|---|" + "---|" * len(attacked) + "\n"
        for name in names:
            probe = probes[name]
            cells = [f"[{cell(probe.__doc__.strip())}](../escape/probes/{name}.py)", cell(probe.INCIDENT),
                     cell(probe.BLOCKED_BY), outside(canary[name])]
            cells += [cell(how(found[name])) for found in attacked.values()]
            text += "| " + " | ".join(cells) + " |\n"
    text += "\n## Known weaknesses\n\n"
    if not weaknesses:
        text += "None of these probes gets through. What the glass does not stop is in the [threat model](threat-model.md#what-is-not-protected).\n"
    for name, known in weaknesses.items():
        text += f"- **[{name}](../escape/probes/{name}.py)** ({', '.join(known['servers'])}): {known['reason']} See\n" \
                f"  [{known['see'].split('#')[0]}]({known['see']}).\n"
    return text
