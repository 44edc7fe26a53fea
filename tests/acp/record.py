"""A recording for the documentation: a real session of `belljar acp-run` with `belljar acp` and a scripted model, written
between the marks in docs/acp-run.md."""

import re
import subprocess

from rig import BELLJAR, HERE, LIMIT, Home, Model, Project
from test_turns import CALC, TEST

PAGE = "docs/acp-run.md"
MARKS = ("<!-- recording: printed by `tests/acp/run.sh record`; do not edit by hand -->\n", "<!-- end of recording -->")
PROMPT = "The test fails. Fix it."


def record():
    home, project, model = Home(), Project(**{"calc.py": CALC, "test_calc.py": TEST}), Model()
    try:
        edit = ("edit_file", {"path": "calc.py", "old_text": "a - b", "new_text": "a + b"})
        model.script(PROMPT, ["I look at the code first.", ("read_file", {"path": "calc.py"})],
                     ["`add` subtracts. I mend that and run the test.", edit],
                     [("run_command", {"command": "python3 -m unittest -q test_calc"})], "Fixed: the test passes.").start()
        words = [BELLJAR, "acp-run", "--agent", f"{BELLJAR} acp", "--prompt", PROMPT, "--allow", "all",
                 "--cwd", str(project.path)]
        done = subprocess.run(words, env=home.environment(model.environment("openai")), capture_output=True, text=True,
                              timeout=LIMIT, check=True)
        shown = done.stdout.replace(str(project.path), "/home/ann/calc")
        shown = re.sub(r"sess-[0-9a-f-]+", "sess-5e1f", shown)
        return f'```text\n$ belljar acp-run --agent "belljar acp" --prompt "{PROMPT}" --allow all\n{shown}```\n'
    finally:
        model.close()
        home.remove()
        project.remove()


def main():
    page = HERE.parents[1] / PAGE
    before, rest = page.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    page.write_text(before + MARKS[0] + record() + MARKS[1] + after)
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
