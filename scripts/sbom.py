#!/usr/bin/env python3
"""What belljar is made of on this kind of machine, as a CycloneDX 1.5 bill of materials: crates, and the wheels of the
Python template.

    scripts/sbom.py [FILE]        to standard output by default
"""

import json
import platform
import re
import sys
import tomllib

from dependencies import ROOT, metadata

LOCK = ROOT / "crates/belljar-backends/templates/python-requirements.lock"


def crates():
    """Those that are linked into the program or the guest, not those that only build or test it."""
    known = metadata([f"{platform.machine()}-unknown-linux-gnu"])
    packages = {package["id"]: package for package in known["packages"]}
    nodes = {node["id"]: node for node in known["resolve"]["nodes"]}
    todo = [id for id, package in packages.items() if package["source"] is None and package["name"] in ("belljar", "belljar-guest")]
    seen, edges = set(), {}
    while todo:
        id = todo.pop()
        if id in seen:
            continue
        seen.add(id)
        edges[id] = [dependency["pkg"] for dependency in nodes[id]["deps"]
                     if any(kind["kind"] is None for kind in dependency["dep_kinds"])]
        todo += edges[id]
    checksums = {(package["name"], package["version"]): package.get("checksum")
                 for package in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    return [packages[id] for id in sorted(seen)], edges, checksums


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def wheels():
    for entry in re.split(r"\n(?=\S)", LOCK.read_text()):
        if match := re.match(r"([A-Za-z0-9._-]+)==(\S+)", entry):
            yield match[1], match[2], re.findall(r"sha256:([0-9a-f]{64})", entry)


def bill():
    packages, edges, checksums = crates()
    by_id = {package["id"]: package for package in packages}
    components = []
    for package in packages:
        component = {"type": "library", "bom-ref": reference(package), "name": package["name"],
                     "version": package["version"], "purl": reference(package)}
        if package["license"]:
            component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if checksum := checksums.get((package["name"], package["version"])):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    for name, version, digests in wheels():
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
        components.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
                           "scope": "optional", "description": "in the Python template",
                           "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests]})
    root = next(package for package in packages if package["name"] == "belljar")
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "belljar", "name": "belljar",
                                   "version": root["version"]}},
        "components": components,
        "dependencies": [{"ref": "belljar", "dependsOn": [reference(root)]}]
        + [{"ref": reference(by_id[id]), "dependsOn": sorted({reference(by_id[to]) for to in targets})}
           for id, targets in sorted(edges.items())],
    }


def main():
    text = json.dumps(bill(), indent=1) + "\n"
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            file.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
