//! PostgreSQL. A statement that a model wrote runs alone, in a read-only transaction, as one message of the extended
//! protocol, which takes a single statement; the connection is thrown away afterwards, and whatever was set with it.

use std::str::FromStr;

use futures::TryStreamExt;
use serde_json::{Value, json};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions, Connection, Executor, PgConnection, Row, TypeInfo, ValueRef,
    postgres::{PgArguments, PgConnectOptions, PgRow, PgTypeKind, types::PgInterval},
    query::Query,
    types::{BigDecimal, Uuid, chrono},
};

use super::{
    Failure, Limits, Rows, Table,
    rows::{decimal, hex},
    table::Column,
};

/// Who we are, and whether we could reach more than data. Asked within the transaction: after its first query, a
/// transaction cannot be made writable any more.
const POWER: &str = "SELECT rolsuper OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname IN \
    ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files') \
    AND pg_has_role(current_user, r.oid, 'MEMBER')) FROM pg_roles WHERE rolname = current_user";

const TABLE: &str = "SELECT n.nspname::text, c.relname::text, c.oid::bigint FROM pg_class c \
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') \
    AND c.relname = $1 AND CASE WHEN $2 = '' THEN pg_table_is_visible(c.oid) ELSE n.nspname = $2 END";

const COLUMNS: &str = "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, \
    pg_get_expr(d.adbin, d.adrelid), t.typcategory = 'A', COALESCE(i.indisprimary, false) \
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
    LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary AND a.attnum = ANY (i.indkey) \
    WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

pub(super) async fn read(url: &str, sql: &str, bound: &[Value], limits: Limits) -> Result<Rows, Failure> {
    let mut connection = connect(url, limits).await?;
    let result = async {
        connection.execute("BEGIN TRANSACTION READ ONLY").await.map_err(refused)?;
        let power: Option<bool> =
            sqlx::query_scalar(POWER).fetch_one(&mut connection).await.map_err(refused)?;
        if power != Some(false) {
            lower(&mut connection).await?;
        }
        query(&mut connection, sql, bound, limits, false).await
    }
    .await;
    let _ = connection.close().await;
    result
}

/// An account that reaches files or programs of the server reads with less power.
async fn lower(connection: &mut PgConnection) -> Result<(), Failure> {
    connection.execute("SET LOCAL ROLE pg_read_all_data").await.map(drop).map_err(|error| {
        Failure::TooPowerful(format!(
            "The database account may use files and programs of its server, which a read-only transaction does not \
             prevent, and it cannot be lowered ({error}): give Belljar an account that is no superuser"
        ))
    })
}

pub(super) async fn write(url: &str, sql: &str, bound: &[Value], limits: Limits) -> Result<Rows, Failure> {
    let mut connection = connect(url, limits).await?;
    let result = query(&mut connection, sql, bound, limits, true).await;
    let _ = connection.close().await;
    result
}

pub(super) async fn table(url: &str, name: &str, limits: Limits) -> Result<Option<Table>, Failure> {
    let mut connection = connect(url, limits).await?;
    let result = look_up(&mut connection, name).await.map_err(refused);
    let _ = connection.close().await;
    result
}

async fn look_up(connection: &mut PgConnection, name: &str) -> Result<Option<Table>, sqlx::Error> {
    // A dot may be a part of the name.
    let mut found = None;
    for (schema, table) in [Some(("", name)), name.split_once('.')].into_iter().flatten() {
        found = sqlx::query_as::<_, (String, String, i64)>(TABLE)
            .bind(table)
            .bind(schema)
            .fetch_optional(&mut *connection)
            .await?;
        if found.is_some() {
            break;
        }
    }
    let Some((schema, name, oid)) = found else { return Ok(None) };
    type Found = (String, String, bool, Option<String>, bool, bool);
    let columns: Vec<Found> = sqlx::query_as(COLUMNS).bind(oid).fetch_all(connection).await?;
    let column = |(name, kind, nullable, default, array, primary): Found| Column {
        name,
        kind,
        array,
        nullable,
        default,
        primary,
    };
    Ok(Some(Table { schema: Some(schema), name, columns: columns.into_iter().map(column).collect() }))
}

async fn connect(url: &str, limits: Limits) -> Result<PgConnection, Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| Failure::Unreachable(format!("its URL is unusable: {error}")))?
        .application_name("belljar")
        .options([("statement_timeout", limits.time.as_millis().to_string())])
        .disable_statement_logging();
    options.connect().await.map_err(|error| Failure::Unreachable(error.to_string()))
}

async fn query(
    connection: &mut PgConnection,
    sql: &str,
    bound: &[Value],
    limits: Limits,
    to_the_end: bool,
) -> Result<Rows, Failure> {
    // In the mode that reads, the text is a model's: what it may do is the transaction's business. Otherwise it is ours.
    // It has a name of its own, because asking for the types of its result would replace an unnamed one.
    let mut statement = sqlx::query(AssertSqlSafe(sql));
    for value in bound {
        statement = bind(statement, value);
    }
    let mut rows = Rows::new(limits.rows);
    let mut seen = 0;
    let mut found = statement.fetch(connection);
    while let Some(row) = found.try_next().await.map_err(refused)? {
        seen += 1;
        if !rows.has_columns() {
            rows.set_columns(row.columns().iter().map(|column| column.name()));
        }
        if !rows.push((0..row.len()).map(|index| value(&row, index))) && !to_the_end {
            break;
        }
    }
    if to_the_end {
        rows.affected = Some(seen);
    }
    Ok(rows)
}

fn bind<'q>(
    statement: Query<'q, sqlx::Postgres, PgArguments>,
    value: &Value,
) -> Query<'q, sqlx::Postgres, PgArguments> {
    match value {
        Value::Null => statement.bind(None::<String>),
        Value::Bool(value) => statement.bind(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => statement.bind(number),
            None => statement.bind(number.as_f64()),
        },
        Value::String(text) => statement.bind(text.clone()),
        other => statement.bind(other.clone()),
    }
}

fn refused(error: sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Database(error) => Failure::Refused(error.message().to_owned()),
        sqlx::Error::Io(error) => Failure::Unreachable(error.to_string()),
        other => Failure::Refused(other.to_string()),
    }
}

macro_rules! get {
    ($row:expr, $index:expr, $type:ty) => {
        $row.try_get::<Option<$type>, _>($index).map(|value| json!(value))
    };
    ($row:expr, $index:expr, $type:ty, text) => {
        $row.try_get::<Option<$type>, _>($index).map(|value| json!(value.map(|value| value.to_string())))
    };
}

fn value(row: &PgRow, index: usize) -> Value {
    let Ok(raw) = row.try_get_raw(index) else { return Value::Null };
    if raw.is_null() {
        return Value::Null;
    }
    let kind = raw.type_info().into_owned();
    let name = kind.name().to_owned();
    let decoded = match name.as_str() {
        "BOOL" => get!(row, index, bool),
        "INT2" => get!(row, index, i16),
        "INT4" => get!(row, index, i32),
        "INT8" => get!(row, index, i64),
        "OID" => row.try_get::<sqlx::postgres::types::Oid, _>(index).map(|oid| json!(oid.0)),
        "FLOAT4" => get!(row, index, f32),
        "FLOAT8" => get!(row, index, f64),
        // As text, because a JSON number would lose digits.
        "NUMERIC" => row.try_get::<BigDecimal, _>(index).map(|number| json!(decimal(&number))),
        "TEXT" | "VARCHAR" | "CHAR" | "NAME" | "UNKNOWN" => get!(row, index, String),
        "JSON" | "JSONB" => get!(row, index, Value),
        "UUID" => get!(row, index, Uuid, text),
        "DATE" => get!(row, index, chrono::NaiveDate, text),
        "TIME" => get!(row, index, chrono::NaiveTime, text),
        "TIMESTAMP" => get!(row, index, chrono::NaiveDateTime, text),
        "TIMESTAMPTZ" => {
            row.try_get::<chrono::DateTime<chrono::Utc>, _>(index).map(|time| json!(time.to_rfc3339()))
        }
        "INTERVAL" => row.try_get::<PgInterval, _>(index).map(|interval| json!(interval_text(&interval))),
        "BYTEA" => row.try_get::<Vec<u8>, _>(index).map(|bytes| hex(&bytes)),
        "VOID" => Ok(Value::Null),
        "BOOL[]" => get!(row, index, Vec<Option<bool>>),
        "INT2[]" => get!(row, index, Vec<Option<i16>>),
        "INT4[]" => get!(row, index, Vec<Option<i32>>),
        "INT8[]" => get!(row, index, Vec<Option<i64>>),
        "FLOAT8[]" => get!(row, index, Vec<Option<f64>>),
        "TEXT[]" | "VARCHAR[]" | "NAME[]" | "CHAR[]" => get!(row, index, Vec<Option<String>>),
        "JSONB[]" | "JSON[]" => get!(row, index, Vec<Option<Value>>),
        // The label of an enumeration travels as text in either format.
        _ if matches!(kind.kind(), PgTypeKind::Enum(_)) => {
            row.try_get_unchecked::<String, _>(index).map(|label| json!(label))
        }
        _ => Ok(json!(format!("[a value of type {name}: cast it to text to see it]"))),
    };
    decoded.unwrap_or_else(|error| json!(format!("[a value of type {name} that cannot be shown: {error}]")))
}

fn interval_text(interval: &PgInterval) -> String {
    let PgInterval { months, days, microseconds } = interval;
    format!("{months} months {days} days {} seconds", *microseconds as f64 / 1e6)
}
