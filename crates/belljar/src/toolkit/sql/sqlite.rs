//! SQLite, in this process. Reading opens the file read-only and asks an authorizer about everything that a statement
//! wants to do; SQLite itself refuses what it does not allow.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use rusqlite::{
    Connection, OpenFlags,
    hooks::{AuthAction, AuthContext, Authorization},
    limits::Limit,
    types::{Value as Cell, ValueRef},
};
use serde_json::{Value, json};

use super::{Failure, Limits, Rows, Table, rows::hex, table::Column};

/// How many steps of its machine SQLite takes between two looks at the clock.
const STEPS: i32 = 10_000;

pub(super) async fn read(url: &str, sql: &str, bound: &[Value], limits: Limits) -> Result<Rows, Failure> {
    let (sql, bound) = (sql.to_owned(), bound.to_vec());
    on_thread(url, OpenFlags::SQLITE_OPEN_READ_ONLY, limits, move |connection| {
        connection.pragma_update(None, "query_only", true)?;
        // A schema may bring functions and tables of its own into play; none of them is trusted.
        connection.pragma_update(None, "trusted_schema", false)?;
        connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
        connection.authorizer(Some(authorize))?;
        query(connection, &sql, &bound, limits, false)
    })
    .await
}

pub(super) async fn write(url: &str, sql: &str, bound: &[Value], limits: Limits) -> Result<Rows, Failure> {
    let (sql, bound) = (sql.to_owned(), bound.to_vec());
    on_thread(url, OpenFlags::SQLITE_OPEN_READ_WRITE, limits, move |connection| {
        connection.pragma_update(None, "foreign_keys", true)?;
        let transaction = connection.unchecked_transaction()?;
        let rows = query(connection, &sql, &bound, limits, true)?;
        transaction.commit()?;
        Ok(rows)
    })
    .await
}

pub(super) async fn table(url: &str, name: &str, limits: Limits) -> Result<Option<Table>, Failure> {
    let name = name.to_owned();
    on_thread(url, OpenFlags::SQLITE_OPEN_READ_ONLY, limits, move |connection| {
        let known = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name = ?1";
        let found = connection.query_row(known, [&name], |row| row.get::<_, String>(0));
        let name = match found {
            Ok(name) => name,
            Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(None),
            Err(error) => return Err(error),
        };
        let columns =
            "SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_info(?1) ORDER BY cid";
        let mut statement = connection.prepare(columns)?;
        let column = |row: &rusqlite::Row<'_>| {
            Ok(Column {
                name: row.get(0)?,
                kind: row.get(1)?,
                array: false,
                nullable: !row.get::<_, bool>(2)?,
                default: row.get(3)?,
                primary: row.get::<_, i64>(4)? > 0,
            })
        };
        let columns = statement.query_map([&name], column)?.collect::<Result<_, _>>()?;
        Ok(Some(Table { schema: None, name, columns }))
    })
    .await
}

/// Reading, and nothing else: no PRAGMA, no ATTACH, no extension, no write of any kind.
fn authorize(asked: AuthContext<'_>) -> Authorization {
    match asked.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } if !function_name.eq_ignore_ascii_case("load_extension") => {
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }
}

/// SQLite blocks, so it has a thread. Whoever stops waiting stops it.
async fn on_thread<T: Send + 'static>(
    url: &str,
    access: OpenFlags,
    limits: Limits,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let path = path(url);
    let given_up = Arc::new(AtomicBool::new(false));
    let guard = StopOnDrop(Arc::clone(&given_up));
    let task = tokio::task::spawn_blocking(move || {
        // Never creates a file: a wrong path must not look like an empty database.
        let connection = Connection::open_with_flags(&path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .map_err(|error| Failure::Unreachable(format!("{}: {error}", path.display())))?;
        let deadline = Instant::now() + limits.time;
        let stop = move || given_up.load(Ordering::Relaxed) || Instant::now() > deadline;
        let result = connection
            .busy_timeout(limits.time)
            .and_then(|()| connection.progress_handler(STEPS, Some(stop)))
            .and_then(|()| work(&connection));
        result.map_err(|error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::OperationInterrupted) => {
                Failure::Refused(format!("it took longer than {} s", limits.time.as_secs()))
            }
            _ => Failure::Refused(error.to_string()),
        })
    });
    let result = task.await.unwrap_or_else(|error| Err(Failure::Unreachable(error.to_string())));
    drop(guard);
    result
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// `sqlite:///absolute/path` and `sqlite://relative/path`, with or without the slashes.
fn path(url: &str) -> PathBuf {
    let rest = url.strip_prefix("sqlite:").unwrap_or(url);
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    rest.split('?').next().unwrap_or_default().into()
}

fn query(
    connection: &Connection,
    sql: &str,
    bound: &[Value],
    limits: Limits,
    to_the_end: bool,
) -> rusqlite::Result<Rows> {
    let mut statement = connection.prepare(sql)?;
    let mut rows = Rows::new(limits.rows);
    rows.set_columns(statement.column_names().into_iter());
    let columns = statement.column_count();
    // What returns nothing has another purpose than reading, even if it has nothing to do this time.
    if !to_the_end && (columns == 0 || !statement.readonly()) {
        return Err(rusqlite::Error::InvalidQuery);
    }
    let mut found = statement.query(rusqlite::params_from_iter(bound.iter().map(cell)))?;
    let mut seen = 0;
    while let Some(row) = found.next()? {
        seen += 1;
        let values = (0..columns).map(|index| row.get_ref(index).map(value));
        // A statement that writes has to run to its end.
        if !rows.push(values.collect::<Result<Vec<_>, _>>()?) && !to_the_end {
            break;
        }
    }
    if to_the_end {
        rows.affected = Some(if columns > 0 { seen } else { connection.changes() });
    }
    Ok(rows)
}

fn cell(value: &Value) -> Cell {
    match value {
        Value::Null => Cell::Null,
        Value::Bool(value) => Cell::Integer(i64::from(*value)),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| Cell::Real(number.as_f64().unwrap_or_default()), Cell::Integer)
        }
        Value::String(text) => Cell::Text(text.clone()),
        other => Cell::Text(other.to_string()),
    }
}

fn value(cell: ValueRef<'_>) -> Value {
    match cell {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => json!(number),
        ValueRef::Real(number) => json!(number),
        ValueRef::Text(text) => Value::String(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => hex(bytes),
    }
}
