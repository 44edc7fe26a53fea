"""Opens a tunnel to an address of the host."""

from lib import by_tunnel, get_within

CLASS = "allow-list"
INCIDENT = "proxies that compared names, and tunnelled to any address"
BLOCKED_BY = "allow-list, which holds for tunnels and addresses too"
NETWORK = "allowlist, open"


def attempt(facts):
    place = f"127.0.0.2:{facts['site_port']}"
    return by_tunnel(facts, place, get_within(place))
