echo 'print("analysed")' >analysis.py
echo 'a,b' >data.csv
# An agent is at work on this server.
with_server() {
    [ -z "$server" ] || return 0
    begin "belljar serve"
    call create_context '{"name": "analysis"}'
    call run_code '{"context_id": "analysis", "code": "open(\"plot.png\", \"w\").close()"}'
}
