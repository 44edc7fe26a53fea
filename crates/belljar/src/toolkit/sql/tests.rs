//! SQLite really runs here; PostgreSQL and MariaDB do in `tests/toolkits`.

use belljar_tools::ToolError;
use serde_json::json;

use super::*;

struct Fixture {
    database: Database,
    path: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL, age REAL DEFAULT 1.5, data BLOB);
             CREATE TABLE \"odd \"\"name\" (\"a b\" TEXT);
             CREATE VIEW adults AS SELECT name FROM users WHERE age >= 18;
             INSERT INTO users (name, age, data) VALUES ('ada', 36, x'00ff'), ('bob', 12, NULL);",
        )
        .unwrap();
    let url = Resolved::new(&format!("sqlite://{}", path.display()), &|_: &str| None);
    let limits = Limits { rows: 500, time: Duration::from_secs(30) };
    Fixture {
        database: Database { url, limits, places: Semaphore::new(AT_ONCE) },
        path,
        _directory: directory,
    }
}

fn told<T: std::fmt::Debug>(result: Result<T, ToolError>) -> String {
    match result {
        Err(ToolError::Tell { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn rows_come_back_as_json() {
    let shop = fixture();
    let rows =
        shop.database.read("SELECT id, name, age, data FROM users WHERE name = ?1", &[json!("ada")]).await;
    assert_eq!(
        rows.unwrap().told(),
        json!({
            "columns": ["id", "name", "age", "data"],
            "rows": [{ "id": 1, "name": "ada", "age": 36.0, "data": "\\x00ff" }],
            "row_count": 1,
        })
    );
    let rows = shop
        .database
        .read("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n", &[]);
    let rows = rows.await.unwrap().told();
    assert_eq!((&rows["row_count"], &rows["truncated"]), (&json!(500), &json!(true)));
}

/// Each is refused by SQLite, and the file stays as it is.
#[tokio::test]
async fn reading_only_reads() {
    let shop = fixture();
    let before = std::fs::read(&shop.path).unwrap();
    let elsewhere = shop.path.with_file_name("elsewhere.db");
    let attach = format!("ATTACH '{}' AS other", elsewhere.display());
    let vacuum = format!("VACUUM INTO '{}'", elsewhere.display());
    let attacks = [
        "DELETE FROM users",
        "UPDATE users SET name = 'x'",
        "INSERT INTO users (name) VALUES ('eve')",
        "DROP TABLE users",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "SELECT 1; DROP TABLE users",
        "SELECT 1; SELECT 2",
        "WITH x AS (SELECT 1) DELETE FROM users",
        "INSERT INTO users (name) SELECT 'eve' RETURNING id",
        "PRAGMA query_only = off",
        "PRAGMA writable_schema = on",
        "PRAGMA journal_mode = wal",
        "PRAGMA table_info(users)",
        "SELECT * FROM pragma_table_info('users')",
        attach.as_str(),
        "ATTACH ':memory:' AS m",
        "DETACH main",
        vacuum.as_str(),
        "SELECT load_extension('/tmp/x.so')",
        "BEGIN IMMEDIATE",
        "SAVEPOINT s",
        "REINDEX",
        "ANALYZE",
        "EXPLAIN DELETE FROM users",
    ];
    for attack in attacks {
        let refusal = told(shop.database.read(attack, &[]).await);
        assert!(refusal.starts_with("The database refused it: "), "{attack}: {refusal}");
    }
    assert_eq!(std::fs::read(&shop.path).unwrap(), before);
    assert!(!elsewhere.exists());
}

#[tokio::test]
async fn rows_are_inserted_and_updated_by_their_names() {
    let shop = fixture();
    let object = |value: Value| value.as_object().unwrap().clone();
    let table = shop.database.table("users").await.unwrap();
    let hostile = "'); DROP TABLE users; --";
    let (sql, bound) =
        table.insert(Engine::Sqlite, &object(json!({ "name": hostile, "data": { "a": 1 } }))).unwrap();
    let made = shop.database.write(&sql, &bound).await.unwrap().told();
    assert_eq!(made["rows"][0], json!({ "id": 3, "name": hostile, "age": 1.5, "data": "{\"a\":1}" }));
    assert_eq!(made["rows_affected"], json!(1));

    let (values, condition) = (object(json!({ "age": 40 })), object(json!({ "name": "ada", "data": null })));
    let (sql, bound) = table.update(Engine::Sqlite, &values, &condition).unwrap();
    assert_eq!(shop.database.write(&sql, &bound).await.unwrap().told()["rows_affected"], json!(0));
    let (sql, bound) = table.update(Engine::Sqlite, &values, &object(json!({ "name": "ada" }))).unwrap();
    let changed = shop.database.write(&sql, &bound).await.unwrap().told();
    assert_eq!((&changed["rows"][0]["age"], &changed["rows_affected"]), (&json!(40.0), &json!(1)));

    let odd = shop.database.table("odd \"name").await.unwrap();
    let (sql, bound) = odd.insert(Engine::Sqlite, &object(json!({ "a b": "c" }))).unwrap();
    assert_eq!(sql, "INSERT INTO \"odd \"\"name\" (\"a b\") VALUES (?1) RETURNING *");
    shop.database.write(&sql, &bound).await.unwrap();
}

#[tokio::test]
async fn only_what_the_catalogue_knows_is_named() {
    let shop = fixture();
    for name in ["nobody", "users; DROP TABLE users", "users\"", "sqlite_schema WHERE 1", ""] {
        assert!(told(shop.database.table(name).await).contains("no table"), "{name}");
    }
    let table = shop.database.table("users").await.unwrap();
    let values = json!({ "name = 'x', age": 1 });
    let refusal = told(table.insert(Engine::Sqlite, values.as_object().unwrap()));
    assert_eq!(refusal, "The table \"users\" has no column \"name = 'x', age\"; it has: id, name, age, data");
    insta::assert_json_snapshot!(table.told());
}

#[tokio::test]
async fn a_database_that_is_not_there_is_not_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nothing.db");
    let url = Resolved::new(&format!("sqlite:{}", path.display()), &|_: &str| None);
    let limits = Limits { rows: 5, time: Duration::from_secs(5) };
    let database = Database { url, limits, places: Semaphore::new(1) };
    assert!(told(database.read("SELECT 1", &[]).await).starts_with("The database cannot be reached"));
    assert!(
        told(database.write("CREATE TABLE t (a)", &[]).await).starts_with("The database cannot be reached")
    );
    assert!(!path.exists());
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_stopped() {
    let mut shop = fixture();
    shop.database.limits.time = Duration::from_millis(200);
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    assert!(told(shop.database.read(endless, &[]).await).contains("it took longer than"));
}

#[test]
fn postgres_is_told_what_a_value_is() {
    let column = |name: &str, kind: &str, array| table::Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        array,
        ..table::Column::default()
    };
    let table = Table {
        schema: Some("public".to_owned()),
        name: "t\"x".to_owned(),
        columns: vec![column("n", "numeric(10,2)", false), column("tags", "text[]", true)],
    };
    let values = json!({ "n": 1.5, "tags": ["a", "b"] });
    let (sql, bound) = table.insert(Engine::Postgres, values.as_object().unwrap()).unwrap();
    assert_eq!(
        sql,
        "INSERT INTO \"public\".\"t\"\"x\" (\"n\", \"tags\") VALUES (CAST(CAST($1 AS text) AS numeric(10,2)), \
         CAST(ARRAY(SELECT jsonb_array_elements_text(CAST($2 AS jsonb))) AS text[])) RETURNING *"
    );
    assert_eq!(bound, [json!("1.5"), json!("[\"a\",\"b\"]")]);
    let (sql, _) = table
        .update(Engine::Mysql, values.as_object().unwrap(), json!({ "n": null }).as_object().unwrap())
        .unwrap();
    assert_eq!(sql, "UPDATE `public`.`t\"x` SET `n` = ?, `tags` = ? WHERE `n` IS NULL");
}
