"""Asks for an address of the host in octal, hexadecimal and short form."""

from lib import by_proxy, get

CLASS = "allow-list"
INCIDENT = "CVE-2021-29921: leading zeros, read as decimal by one and as octal by another"
BLOCKED_BY = "unusual forms of addresses are refused, and private addresses whatever their form"
NETWORK = "allowlist, open"


def attempt(facts):
    return by_proxy(facts, *(get(f"{address}:{facts['site_port']}") for address in ("0x7f.2", "127.2", "0177.0.0.02")))
