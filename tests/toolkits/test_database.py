"""The toolkit `database` on SQLite, PostgreSQL and MariaDB: what it reads, what it writes, what it never does."""

import contextlib
import json
import sqlite3
import unittest

import databases
from harness import Case, Server, directory, settle

TOOLS = ["query_database", "insert_data", "update_data", "get_table_schema"]
DATABASE = ("--toolkit", "database", "--toolsets", "database")


class Database:
    """What holds for every kind. `self.rows()` is what is in the table, asked around Belljar."""

    def test_it_offers_exactly_its_tools(self):
        self.assertEqual(self.tools(), TOOLS)

    def test_rows_come_back(self):
        found = self.call("query_database", query="SELECT id, name, age FROM users ORDER BY id")
        self.assertEqual([(row["id"], row["name"], row["age"]) for row in found["rows"]], [(1, "ada", 36), (2, "bob", 12)])
        self.assertEqual((found["columns"], found["row_count"]), (["id", "name", "age"], 2))

    def test_values_are_bound(self):
        hostile = "x' OR '1'='1"
        query = f"SELECT id FROM users WHERE name = {self.PLACE}"
        self.assertEqual(self.call("query_database", query=query, params=[hostile])["rows"], [])
        self.assertEqual(self.call("query_database", query=query, params=["ada"])["rows"], [{"id": 1}])

    def test_rows_are_capped(self):
        found = self.call("query_database", query=self.MANY)
        self.assertEqual((found["row_count"], found["truncated"]), (500, True))

    def test_reading_only_reads(self):
        before = self.rows()
        for attack in ["DELETE FROM users", "DROP TABLE users", "UPDATE users SET name = 'x'",
                       "INSERT INTO users (id, name) VALUES (9, 'eve')", "SELECT 1; DROP TABLE users",
                       "SELECT 1; DELETE FROM users", "CREATE TABLE stolen (a int)",
                       "COMMIT; DROP TABLE users", *self.ATTACKS]:
            with self.subTest(attack):
                result = self.result("query_database", query=attack)
                self.assertTrue(result.is_error, (attack, result.content))
                self.assertIn("refused", json.loads(result.content[0].text)["error"])
        self.assertEqual(self.rows(), before)

    def test_a_statement_that_ends_the_transaction_gains_nothing(self):
        before = self.rows()
        for first in self.ENDINGS:
            with self.subTest(first):
                self.result("query_database", query=first)
                self.assertTrue(self.result("query_database", query="DELETE FROM users").is_error)
        self.assertEqual(self.rows(), before)

    def test_rows_are_written_by_their_names(self):
        made = self.call("insert_data", table="notes", data={"text": "'); DROP TABLE notes; --", "stars": 3})
        self.assertEqual(made["rows_affected"], 1)
        changed = self.call("update_data", table="notes", where={"stars": 3}, data={"text": "new", "stars": 4})
        self.assertEqual(changed["rows_affected"], 1)
        found = self.call("query_database", query="SELECT text, stars FROM notes")
        self.assertEqual(found["rows"], [{"text": "new", "stars": 4}])
        self.assertEqual(self.call("update_data", table="notes", where={"stars": 99}, data={"text": "x"})["rows_affected"], 0)

    def test_only_names_of_the_catalogue(self):
        before = self.rows()
        for table in ["nobody", "users; DROP TABLE users", 'users"', "users WHERE 1=1 --", ""]:
            message = self.refused("INVALID_PARAMS", "insert_data", table=table, data={"name": "x"})
            self.assertIn("no table", message)
            self.refused("INVALID_PARAMS", "get_table_schema", table=table)
        for column in ["nobody", "name) VALUES ('x'); --", "name = 'x', age"]:
            message = self.refused("INVALID_PARAMS", "update_data", table="users", where={"id": 1}, data={column: "x"})
            self.assertIn("no column", message)
        self.assertIn("at least one column", self.refused("INVALID_PARAMS", "update_data", table="users", where={}, data={"name": "x"}))
        self.assertEqual(self.rows(), before)

    def test_a_table_is_described(self):
        described = self.call("get_table_schema", table="users")
        columns = {column["column"]: column for column in described["columns"]}
        self.assertEqual(list(columns), ["id", "name", "age"])
        self.assertTrue(columns["id"]["primary_key"])
        self.assertFalse(columns["name"]["nullable"])

    def test_resources(self):
        tables = {table["name"] for table in json.loads(self.read("db://tables"))}
        self.assertLessEqual({"users", "notes"}, tables)
        self.assertGreaterEqual(json.loads(self.read("db://stats"))["tables"], 2)

    def test_no_secret_is_shown(self):
        self.assertNotIn("secret", self.server.stderr())


class Sqlite(Database, Case):
    PLACE = "?1"
    MANY = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) SELECT i FROM n"
    ATTACKS = ["PRAGMA query_only = off", "PRAGMA writable_schema = 1", "ATTACH '/tmp/belljar-stolen.db' AS x",
               "VACUUM INTO '/tmp/belljar-stolen.db'", "WITH x AS (SELECT 1) DELETE FROM users",
               "SELECT load_extension('x')", "SELECT * FROM pragma_database_list"]
    ENDINGS = ["COMMIT", "ROLLBACK", "PRAGMA query_only = 0"]

    @classmethod
    def setUpClass(cls):
        place = contextlib.ExitStack()
        cls.addClassCleanup(place.close)
        cls.path = place.enter_context(directory()) / "shop.db"
        with sqlite3.connect(cls.path) as database:
            database.executescript(
                "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL, age INTEGER);"
                "CREATE TABLE notes (text TEXT, stars INTEGER);"
                "INSERT INTO users VALUES (1, 'ada', 36), (2, 'bob', 12);")
        database.close()
        cls.arguments, cls.env = DATABASE, {"DATABASE_URL": f"sqlite://{cls.path}"}
        super().setUpClass()

    def rows(self):
        database = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        try:
            return database.execute("SELECT * FROM users ORDER BY id").fetchall()
        finally:
            database.close()

    def test_a_database_that_is_not_there_is_not_made(self):
        with directory() as place:
            server = Server(*DATABASE, env={"DATABASE_URL": f"sqlite://{place}/nothing.db"})
            self.addCleanup(server.close)
            result = server.wait(server.client.call_tool("query_database", {"query": "SELECT 1"}))
            self.assertIn("cannot be reached", result.content[0].text)
            self.assertEqual(list(place.iterdir()), [])


class PostgreSql(Database, Case):
    PLACE = "$1"
    MANY = "SELECT generate_series(1, 100000) AS i"
    ATTACKS = [
        "WITH gone AS (DELETE FROM users RETURNING *) SELECT * FROM gone",
        "SELECT forget_everybody()",
        "SELECT nextval('numbers')",
        "SELECT setval('numbers', 100)",
        "COPY users TO PROGRAM 'touch /tmp/belljar-stolen'",
        "COPY (SELECT 1) TO PROGRAM 'touch /tmp/belljar-stolen'",
        "COPY users FROM PROGRAM 'echo 9'",
        "COPY users TO '/tmp/belljar-stolen'",
        "SET TRANSACTION READ WRITE",
        "SELECT set_config('transaction_read_only', 'off', false), forget_everybody()",
        "SELECT query_to_xml('DELETE FROM users', true, true, '')",
        "SELECT * FROM users FOR UPDATE",
        "DO $$ BEGIN DELETE FROM users; END $$",
        "EXPLAIN ANALYZE DELETE FROM users",
        "CALL empty_users()",
        "REFRESH MATERIALIZED VIEW adults",
        "SELECT pg_read_file('/etc/passwd')",
        "BEGIN; DELETE FROM users; COMMIT",
    ]
    ENDINGS = ["COMMIT", "ROLLBACK", "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
               "SET default_transaction_read_only = off"]

    @classmethod
    def setUpClass(cls):
        cls.database = databases.Postgres()
        cls.addClassCleanup(cls.database.close)
        cls.database.sql("CREATE DATABASE shop")
        cls.database.sql(
            "CREATE ROLE app LOGIN PASSWORD 'app-secret';"
            "GRANT ALL ON SCHEMA public TO app;"
            "SET ROLE app;"
            "CREATE TYPE mood AS ENUM ('sad', 'glad');"
            "CREATE TABLE users (id integer PRIMARY KEY, name text NOT NULL, age integer);"
            "CREATE TABLE notes (text text, stars integer);"
            "CREATE TABLE kinds (n numeric(10,2), u uuid, d date, t timestamptz, j jsonb, b bytea, a text[], m mood,"
            " f double precision, i interval, x inet);"
            "INSERT INTO users VALUES (1, 'ada', 36), (2, 'bob', 12);"
            "CREATE SEQUENCE numbers;"
            "CREATE MATERIALIZED VIEW adults AS SELECT * FROM users WHERE age >= 18;"
            "CREATE FUNCTION forget_everybody() RETURNS int LANGUAGE plpgsql AS"
            " 'BEGIN DELETE FROM users; RETURN 1; END';"
            "CREATE PROCEDURE empty_users() LANGUAGE sql AS 'DELETE FROM users';", "shop")
        cls.arguments, cls.env = DATABASE, {"DATABASE_URL": cls.database.url()}
        super().setUpClass()

    def rows(self):
        return self.database.sql("SELECT *, (SELECT last_value FROM numbers) FROM users ORDER BY id", "shop")

    def test_every_type_is_told(self):
        row = {"n": 12.5, "u": "0f0e0d0c-0b0a-4908-8706-050403020100", "d": "2026-01-02",
               "t": "2026-01-02T03:04:05Z", "j": {"a": [1, None]}, "a": ["x", "y'\"z"], "m": "glad", "f": 0.25,
               "i": "1 day", "x": "10.0.0.1"}
        self.call("insert_data", table="kinds", data=row)
        found = self.call("query_database", query="SELECT n, u, d, t, j, a, m, f, i FROM kinds")["rows"][0]
        self.assertEqual(found, {**{key: row[key] for key in "udjamf"}, "n": "12.5", "t": "2026-01-02T03:04:05+00:00",
                                 "i": "0 months 1 days 0 seconds"})
        found = self.call("query_database", query="SELECT x, x::text AS t, b FROM kinds")["rows"][0]
        self.assertEqual((found["t"], found["b"]), ("10.0.0.1/32", None))
        self.assertIn("cast it to text", found["x"])

    def test_a_slow_statement_is_stopped_by_the_database(self):
        own = "name = 'quick'\n[database]\nurl = 'env:DATABASE_URL'\ntimeout = 1\n[[tool]]\nname = 'ask'\ndescription = 'x'\n" \
              "required = ['q']\nparameters.q = { type = 'string' }\nsql = { statement = 'q' }\n"
        with directory() as place:
            (place / "quick.toml").write_text(own)
            server = Server("--toolkit", str(place / "quick.toml"), "--toolsets", "quick", env=self.env)
            self.addCleanup(server.close)
            result = server.wait(server.client.call_tool("ask", {"q": "SELECT pg_sleep(3600)"}))
        self.assertIn("statement timeout", result.content[0].text)

    def test_what_the_transaction_allows_ends_with_it(self):
        for harmless in ["SELECT lo_create(0)", "LOCK TABLE users", "SELECT pg_advisory_lock(1)"]:
            with self.subTest(harmless):
                self.result("query_database", query=harmless)
        self.assertEqual(self.database.sql("SELECT count(*) FROM pg_largeobject_metadata", "shop"), "0")
        locks = lambda: self.database.sql("SELECT count(*) FROM pg_locks WHERE locktype IN ('advisory', 'relation')"
                                          " AND pid <> pg_backend_pid()", "shop")
        settle(lambda: locks() == "0", "locks are held")

    def test_a_schema_may_be_named(self):
        self.assertEqual(self.call("get_table_schema", table="public.users")["table"], "public.users")
        self.refused("INVALID_PARAMS", "get_table_schema", table="pg_catalogue.users")

    def test_a_superuser_reads_with_less_power(self):
        before = self.rows()
        server = Server(*DATABASE, env={"DATABASE_URL": self.database.url("boss", "root-secret")})
        self.addCleanup(server.close)
        ask = lambda query: server.wait(server.client.call_tool("query_database", {"query": query}))
        self.assertEqual(ask("SELECT name FROM users WHERE id = 1").structured_content["rows"], [{"name": "ada"}])
        for attack in ["COPY (SELECT 1) TO PROGRAM 'touch /tmp/belljar-stolen'", "SELECT pg_read_file('/etc/passwd')",
                       "DELETE FROM users", "SELECT forget_everybody()", "SELECT lo_import('/etc/passwd')",
                       "ALTER SYSTEM SET port = 1", "CREATE EXTENSION plpgsql",
                       "WITH gone AS (DELETE FROM users RETURNING *) SELECT * FROM gone"]:
            with self.subTest(attack):
                self.assertTrue(ask(attack).is_error, attack)
        self.assertEqual(self.rows(), before)


@unittest.skipUnless(databases.MariaDb.server, "MariaDB is not installed")
class MySql(Database, Case):
    PLACE = "?"
    MANY = "SELECT seq FROM seq_1_to_9999"
    ATTACKS = ["CALL empty_users()", "TRUNCATE users", "ALTER TABLE users ADD x int",
               "SELECT * FROM users INTO OUTFILE '/tmp/belljar-stolen'", "LOAD DATA INFILE '/etc/passwd' INTO TABLE notes",
               "SET GLOBAL read_only = 0", "CREATE USER eve"]
    ENDINGS = ["COMMIT", "ROLLBACK", "SET SESSION TRANSACTION READ WRITE", "SET autocommit = 1"]

    @classmethod
    def setUpClass(cls):
        cls.database = databases.MariaDb()
        cls.addClassCleanup(cls.database.close)
        cls.database.sql("CREATE DATABASE shop")
        cls.database.sql(
            "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'app-secret'; GRANT ALL ON shop.* TO app@'127.0.0.1';"
            "CREATE USER app@localhost IDENTIFIED BY 'app-secret'; GRANT ALL ON shop.* TO app@localhost;"
            "CREATE USER boss@localhost IDENTIFIED BY 'app-secret'; GRANT ALL ON *.* TO boss@localhost;"
            "CREATE TABLE users (id int PRIMARY KEY, name varchar(50) NOT NULL, age int);"
            "CREATE TABLE notes (text varchar(100), stars int);"
            "INSERT INTO users VALUES (1, 'ada', 36), (2, 'bob', 12);"
            "CREATE PROCEDURE empty_users() DELETE FROM users;", "shop")
        cls.arguments, cls.env = DATABASE, {"DATABASE_URL": cls.database.url()}
        super().setUpClass()

    def rows(self):
        return self.database.sql("SELECT * FROM users ORDER BY id", "shop")

    def test_an_account_that_reaches_files_is_not_used(self):
        server = Server(*DATABASE, env={"DATABASE_URL": self.database.url("boss")})
        self.addCleanup(server.close)
        result = server.wait(server.client.call_tool("query_database", {"query": "SELECT 1"}))
        self.assertIn("the privilege FILE", result.content[0].text)


if __name__ == "__main__":
    unittest.main()
