# A stand-in for GitHub, a database, and a server that offers both to code.
python3 "$REPOSITORY/tests/docs/issues.py" >"$PAGE_DIR/issues.log" 2>&1 &
stand_in=$!
until_true 30 grep -q listening "$PAGE_DIR/issues.log"
python3 -c 'import sqlite3; sqlite3.connect("crashes.db").execute("CREATE TABLE crashes (number INTEGER, title TEXT)")'
export GITHUB_API_URL=http://localhost:8001 GITHUB_TOKEN=none DATABASE_URL=sqlite://$PWD/crashes.db
begin "belljar serve --toolkit cicd --toolkit database"
end_stand_ins() { kill "$stand_in"; }
run_python() { python3 "$REPOSITORY/tests/docs/in_context.py" python "$1"; }
run_js() { python3 "$REPOSITORY/tests/docs/in_context.py" javascript "$1"; }
