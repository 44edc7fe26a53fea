//! MySQL and MariaDB. A statement that a model wrote is prepared, which takes a single one, and runs in a read-only
//! transaction on a connection of its own.

use std::str::FromStr;

use futures::TryStreamExt;
use serde_json::{Value, json};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions, Connection, Either, Executor, MySqlConnection, Row, TypeInfo,
    ValueRef,
    mysql::{MySqlArguments, MySqlConnectOptions, MySqlRow},
    query::Query,
    types::{BigDecimal, chrono},
};

use super::{
    Failure, Limits, Rows, Table,
    rows::{decimal, hex},
    table::Column,
};

/// Whether `INTO OUTFILE` and `LOAD_FILE` would work: a read-only transaction does not prevent them.
const POWER: &str = "SELECT COUNT(*) FROM information_schema.user_privileges \
    WHERE privilege_type = 'FILE'";

const COLUMNS: &str = "SELECT CAST(table_name AS CHAR), CAST(column_name AS CHAR), CAST(column_type AS CHAR), \
    is_nullable = 'YES', CAST(column_default AS CHAR), column_key = 'PRI' FROM information_schema.columns \
    WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position";

pub(super) async fn read(url: &str, sql: &str, bound: &[Value], limits: Limits) -> Result<Rows, Failure> {
    let mut connection = connect(url, limits).await?;
    let result = async {
        let power: i64 = sqlx::query_scalar(POWER).fetch_one(&mut connection).await.map_err(refused)?;
        if power > 0 {
            return Err(Failure::TooPowerful(
                "The database account may read and write files of its server (the privilege FILE), which a read-only \
                 transaction does not prevent: give Belljar an account without it"
                    .to_owned(),
            ));
        }
        // For the session too: a statement that ends the transaction must not be followed by a writable one.
        for text in ["SET SESSION TRANSACTION READ ONLY", "START TRANSACTION READ ONLY"] {
            connection.execute(text).await.map_err(refused)?;
        }
        query(&mut connection, sql, bound, limits, false).await
    }
    .await;
    let _ = connection.close().await;
    result
}

pub(super) async fn write(url: &str, sql: &str, bound: &[Value], limits: Limits) -> Result<Rows, Failure> {
    let mut connection = connect(url, limits).await?;
    let result = query(&mut connection, sql, bound, limits, true).await;
    let _ = connection.close().await;
    result
}

pub(super) async fn table(url: &str, name: &str, limits: Limits) -> Result<Option<Table>, Failure> {
    type Found = (String, String, String, bool, Option<String>, bool);
    let mut connection = connect(url, limits).await?;
    let found: Result<Vec<Found>, _> = sqlx::query_as(COLUMNS).bind(name).fetch_all(&mut connection).await;
    let _ = connection.close().await;
    let mut table = Table::default();
    for (name, column, kind, nullable, default, primary) in found.map_err(refused)? {
        table.name = name;
        table.columns.push(Column { name: column, kind, array: false, nullable, default, primary });
    }
    Ok((!table.columns.is_empty()).then_some(table))
}

async fn connect(url: &str, limits: Limits) -> Result<MySqlConnection, Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = url.replacen("mariadb:", "mysql:", 1);
    let options = MySqlConnectOptions::from_str(&url)
        .map_err(|error| Failure::Unreachable(format!("its URL is unusable: {error}")))?
        .statement_cache_capacity(0)
        .disable_statement_logging();
    let mut connection = options.connect().await.map_err(|error| Failure::Unreachable(error.to_string()))?;
    // The two have different names for it, and each refuses the other's.
    let limit = [
        format!("SET SESSION max_statement_time = {}", limits.time.as_secs()),
        format!("SET SESSION max_execution_time = {}", limits.time.as_millis()),
    ];
    for text in limit {
        if connection.execute(AssertSqlSafe(text)).await.is_ok() {
            return Ok(connection);
        }
    }
    Err(Failure::Unreachable("it has no time limit for statements".to_owned()))
}

async fn query(
    connection: &mut MySqlConnection,
    sql: &str,
    bound: &[Value],
    limits: Limits,
    to_the_end: bool,
) -> Result<Rows, Failure> {
    // In the mode that reads, the text is a model's: what it may do is the transaction's business. Otherwise it is ours.
    let mut statement = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    for value in bound {
        statement = bind(statement, value);
    }
    let mut rows = Rows::new(limits.rows);
    let mut affected = 0;
    let mut found = connection.fetch_many(statement);
    while let Some(step) = found.try_next().await.map_err(refused)? {
        match step {
            Either::Left(done) => affected += done.rows_affected(),
            Either::Right(row) => {
                if !rows.has_columns() {
                    rows.set_columns(row.columns().iter().map(|column| column.name()));
                }
                if !rows.push((0..row.len()).map(|index| value(&row, index))) && !to_the_end {
                    break;
                }
            }
        }
    }
    if to_the_end {
        rows.affected = Some(affected);
    }
    Ok(rows)
}

fn bind<'q>(
    statement: Query<'q, sqlx::MySql, MySqlArguments>,
    value: &Value,
) -> Query<'q, sqlx::MySql, MySqlArguments> {
    match value {
        Value::Null => statement.bind(None::<String>),
        Value::Bool(value) => statement.bind(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => statement.bind(number),
            None => statement.bind(number.as_f64()),
        },
        Value::String(text) => statement.bind(text.clone()),
        other => statement.bind(other.to_string()),
    }
}

fn refused(error: sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Database(error) => Failure::Refused(error.message().to_owned()),
        sqlx::Error::Io(error) => Failure::Unreachable(error.to_string()),
        other => Failure::Refused(other.to_string()),
    }
}

fn value(row: &MySqlRow, index: usize) -> Value {
    let Ok(raw) = row.try_get_raw(index) else { return Value::Null };
    if raw.is_null() {
        return Value::Null;
    }
    let name = raw.type_info().name().to_owned();
    let decoded = match name.as_str() {
        "BOOLEAN" => row.try_get::<bool, _>(index).map(|value| json!(value)),
        "FLOAT" => row.try_get::<f32, _>(index).map(|value| json!(value)),
        "DOUBLE" => row.try_get::<f64, _>(index).map(|value| json!(value)),
        // As text, because a JSON number would lose digits.
        "DECIMAL" => row.try_get::<BigDecimal, _>(index).map(|value| json!(decimal(&value))),
        "DATE" => row.try_get::<chrono::NaiveDate, _>(index).map(|value| json!(value.to_string())),
        "TIME" => row.try_get::<chrono::NaiveTime, _>(index).map(|value| json!(value.to_string())),
        "DATETIME" => row.try_get::<chrono::NaiveDateTime, _>(index).map(|value| json!(value.to_string())),
        "TIMESTAMP" => {
            row.try_get::<chrono::DateTime<chrono::Utc>, _>(index).map(|value| json!(value.to_string()))
        }
        "JSON" => row.try_get::<Value, _>(index),
        "BINARY" | "VARBINARY" | "BLOB" | "TINYBLOB" | "MEDIUMBLOB" | "LONGBLOB" => {
            row.try_get::<Vec<u8>, _>(index).map(|bytes| hex(&bytes))
        }
        unsigned if unsigned.ends_with("UNSIGNED") || ["BIT", "YEAR"].contains(&unsigned) => {
            row.try_get_unchecked::<u64, _>(index).map(|value| json!(value))
        }
        number if number.ends_with("INT") => row.try_get::<i64, _>(index).map(|value| json!(value)),
        _ => row.try_get_unchecked::<String, _>(index).map(|value| json!(value)),
    };
    decoded.unwrap_or_else(|error| json!(format!("[a value of type {name} that cannot be shown: {error}]")))
}
