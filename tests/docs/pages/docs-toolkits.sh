cat >own.toml <<'TOML'
name = "own"

[[tool]]
name = "hello"
description = "Says hello."
[tool.command]
argv = ["echo", "hello"]
TOML
