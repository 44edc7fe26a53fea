// Judges the reports of the conformance suite: verdict.mjs RESULTS EXPECTED_FAILURES SET...
//
// A set is a revision of the protocol, meaning all that the suite has for it, or `REVISION=SCENARIO SCENARIO...`.
// Stricter than the suite's own exit code, which looks neither at scenarios that a revision does not score nor at
// scenarios that broke before they could write a report.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const suite = join(dirname(fileURLToPath(import.meta.url)), "node_modules/@modelcontextprotocol/conformance");
const { parse } = createRequire(join(suite, "package.json"))("yaml");
const [results, expectedFile, ...sets] = process.argv.slice(2);

const expected = new Set(parse(readFileSync(expectedFile, "utf8"))?.server ?? []);
const met = new Set();
let unexpected = 0;

/** The checks of every scenario that has a report, by the scenario's name. */
function reports(revision) {
  const found = new Map();
  const directory = join(results, revision);
  for (const name of existsSync(directory) ? readdirSync(directory) : []) {
    const scenario = /^server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z$/.exec(name)?.[1];
    if (scenario) found.set(scenario, JSON.parse(readFileSync(join(directory, name, "checks.json"), "utf8")));
  }
  return found;
}

/** Every scenario that the suite runs for a revision, whether it scores them or not. */
function all(revision) {
  const { server, not_scored = [] } = parse(readFileSync(join(suite, "requirements", `${revision}.yaml`), "utf8"));
  return [...server, ...not_scored.filter(({ leg }) => leg === "server").map(({ scenario }) => scenario)];
}

function judge(set) {
  const [revision, chosen] = set.split("=");
  const found = reports(revision);
  const counts = { SUCCESS: 0, FAILURE: 0, WARNING: 0, SKIPPED: 0, INFO: 0 };
  const lines = [];
  for (const scenario of chosen?.split(" ") ?? all(revision)) {
    const checks = found.get(scenario) ?? [];
    // One that has nothing to say has not passed.
    if (checks.length === 0) checks.push({ id: scenario, status: "FAILURE", errorMessage: "left no report" });
    for (const { id, status, errorMessage = "" } of checks) {
      counts[status] = (counts[status] ?? 0) + 1;
      if (status === "SUCCESS" || status === "INFO") continue;
      let verdict = status;
      if (status !== "SKIPPED") {
        const entry = [scenario, `${scenario}:${id}`].find((entry) => expected.has(entry));
        if (entry) met.add(entry);
        else unexpected += 1;
        if (entry) verdict += " (expected)";
      }
      lines.push(`  ${verdict} ${scenario}:${id} ${errorMessage}`);
    }
  }
  const { SUCCESS, FAILURE, WARNING, SKIPPED, INFO } = counts;
  console.log(
    `${revision}: ${found.size} scenarios; checks: ${SUCCESS} passed, ${FAILURE} failed, ${WARNING} warnings, ` +
      `${SKIPPED} skipped by the suite, ${INFO} for information`,
  );
  for (const line of lines) console.log(line);
}

for (const set of sets) judge(set);
const stale = [...expected].filter((entry) => !met.has(entry));
for (const entry of stale) console.log(`${entry} is expected to fail and did not: take it out of ${expectedFile}`);
if (unexpected > 0) console.log(`${unexpected} checks did not pass; the suite's own words are in ${results}`);
process.exit(unexpected > 0 || stale.length > 0 ? 1 : 0);
