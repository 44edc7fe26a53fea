//! Tools that ask a database. What a model writes is only ever bound or, as a whole statement, run in a transaction
//! that the database itself keeps from writing; names of tables and columns are those of the catalogue.

mod mysql;
mod postgres;
mod rows;
mod sqlite;
mod table;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use belljar_tools::{ToolError, ToolOutput};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use toml::Spanned;

use super::{
    arguments::Parameters,
    environment::{Resolved, refers},
    file,
    problems::Check,
    template::Template,
    tool::{invalid, output, tell},
};
use crate::config::Environment;
use rows::Rows;
use table::Table;

/// Statements of one toolkit at the same time; others wait.
const AT_ONCE: usize = 8;
/// Beside a statement's own time limit, for connecting and for a database that does not keep it.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_STATEMENT: usize = 100_000;

#[derive(Debug)]
pub(super) struct Database {
    url: Resolved,
    limits: Limits,
    places: Semaphore,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    rows: usize,
    time: Duration,
}

/// Which kind of database an address names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Sqlite,
    Postgres,
    Mysql,
}

/// A text of ours, in which parameters are bound.
#[derive(Debug)]
pub(super) struct Query {
    /// For SQLite, PostgreSQL and MySQL; all the same unless the file has one for each.
    texts: [Option<Template>; 3],
    single: bool,
}

/// What a tool does.
#[derive(Debug)]
enum Action {
    Fixed { query: Query, write: bool },
    Statement { parameter: String, bind: Option<String> },
    Insert { table: String, values: String },
    Update { table: String, values: String, condition: String },
    Describe { table: String },
}

#[derive(Debug)]
pub(super) struct Sql {
    database: Arc<Database>,
    action: Action,
}

/// Why there is no result.
#[derive(Debug)]
enum Failure {
    /// The database said no.
    Refused(String),
    Unreachable(String),
    /// The account may do more than a query may.
    TooPowerful(String),
}

impl From<Failure> for ToolError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(why) => tell("DATABASE_ERROR", format!("The database refused it: {why}")),
            Failure::Unreachable(why) => {
                tell("DATABASE_UNREACHABLE", format!("The database cannot be reached: {why}"))
            }
            Failure::TooPowerful(why) => tell("NOT_CONFIGURED", why),
        }
    }
}

impl Engine {
    const ALL: [(Self, &str); 3] =
        [(Self::Sqlite, "sqlite"), (Self::Postgres, "postgres"), (Self::Mysql, "mysql")];

    fn of(url: &str) -> Result<Self, String> {
        let scheme = url.split_once(':').map(|(scheme, _)| scheme).unwrap_or_default();
        match scheme {
            "sqlite" => Ok(Self::Sqlite),
            "postgres" | "postgresql" => Ok(Self::Postgres),
            "mysql" | "mariadb" => Ok(Self::Mysql),
            _ => Err("a database has a URL such as sqlite:///path, postgres://user@host/name or \
                      mysql://user@host/name"
                .to_owned()),
        }
    }

    fn placeholder(self, number: usize) -> String {
        match self {
            Self::Sqlite => format!("?{number}"),
            Self::Postgres => format!("${number}"),
            Self::Mysql => "?".to_owned(),
        }
    }

    fn quote(self, name: &str) -> String {
        match self {
            Self::Mysql => format!("`{}`", name.replace('`', "``")),
            Self::Sqlite | Self::Postgres => format!("\"{}\"", name.replace('"', "\"\"")),
        }
    }
}

impl Database {
    pub(super) fn check(database: &file::Database, environment: &Environment, check: &mut Check<'_>) -> Self {
        let text = database.url.get_ref();
        if !refers(text) && text.split_once("://").is_some_and(|(_, rest)| rest.contains('@')) {
            check.at(&database.url, "an address with an account must come from the environment: env:NAME");
        }
        let url = Resolved::new(text, environment);
        if let Ok(url) = url.get() {
            check.keep(&database.url, Engine::of(url));
        }
        let limits = Limits {
            rows: database.max_rows.clamp(1, 100_000),
            time: Duration::from_secs(database.timeout.clamp(1, 3600)),
        };
        Self { url, limits, places: Semaphore::new(AT_ONCE) }
    }

    fn target(&self) -> Result<(Engine, &str), ToolError> {
        let url = self.url.get().map_err(|missing| tell("NOT_CONFIGURED", missing.to_string()))?;
        Ok((Engine::of(url).map_err(|why| tell("NOT_CONFIGURED", why))?, url))
    }

    /// Within the time limit, and when a place is free.
    async fn bounded<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, ToolError> {
        let _place = self.places.acquire().await;
        match tokio::time::timeout(self.limits.time + PATIENCE, work).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(tell(
                "TIMED_OUT",
                format!("The database did not answer within {} s", (self.limits.time + PATIENCE).as_secs()),
            )),
        }
    }

    async fn read(&self, sql: &str, bound: &[Value]) -> Result<Rows, ToolError> {
        let (engine, url) = self.target()?;
        self.bounded(async {
            match engine {
                Engine::Sqlite => sqlite::read(url, sql, bound, self.limits).await,
                Engine::Postgres => postgres::read(url, sql, bound, self.limits).await,
                Engine::Mysql => mysql::read(url, sql, bound, self.limits).await,
            }
        })
        .await
    }

    async fn write(&self, sql: &str, bound: &[Value]) -> Result<Rows, ToolError> {
        let (engine, url) = self.target()?;
        self.bounded(async {
            match engine {
                Engine::Sqlite => sqlite::write(url, sql, bound, self.limits).await,
                Engine::Postgres => postgres::write(url, sql, bound, self.limits).await,
                Engine::Mysql => mysql::write(url, sql, bound, self.limits).await,
            }
        })
        .await
    }

    /// What the catalogue says of a table.
    async fn table(&self, name: &str) -> Result<Table, ToolError> {
        let (engine, url) = self.target()?;
        let found = self
            .bounded(async {
                match engine {
                    Engine::Sqlite => sqlite::table(url, name, self.limits).await,
                    Engine::Postgres => postgres::table(url, name, self.limits).await,
                    Engine::Mysql => mysql::table(url, name, self.limits).await,
                }
            })
            .await?;
        found.ok_or_else(|| {
            invalid(format!("There is no table {name:?} in the database; names are as in its catalogue"))
        })
    }

    /// For a resource.
    pub(super) async fn read_fixed(&self, query: &Query) -> Result<Value, String> {
        let read = async {
            let (engine, _) = self.target()?;
            let (sql, _) = query.bind(engine, &Map::new())?;
            let rows = self.read(&sql, &[]).await?;
            // One row is an object, not a list of one.
            Ok::<_, ToolError>(if query.single { rows.first() } else { rows.objects() })
        };
        read.await.map_err(|error| match error {
            ToolError::Tell { message, .. } | ToolError::Fatal(message) => message,
        })
    }
}

impl Query {
    /// One text, or a table with one for each kind of database.
    pub(super) fn parse(value: &toml::Value, known: impl Fn(&str) -> bool) -> Result<Self, String> {
        let parse = |text: &str| {
            let template = Template::parse(text)?;
            let unknown = template.names().find(|name| !known(name)).map(str::to_owned);
            match unknown {
                Some(name) => Err(format!("there is no parameter {name:?}")),
                None => Ok(template),
            }
        };
        match value {
            toml::Value::String(text) => {
                let template = parse(text)?;
                Ok(Self {
                    texts: [Some(template.clone()), Some(template.clone()), Some(template)],
                    single: false,
                })
            }
            toml::Value::Table(table) => {
                let mut texts = [None, None, None];
                let mut single = false;
                for (key, value) in table {
                    let engine = Engine::ALL.iter().position(|(_, name)| name == key);
                    match (engine, value) {
                        (Some(engine), toml::Value::String(text)) => texts[engine] = Some(parse(text)?),
                        (None, toml::Value::Boolean(given)) if key == "single" => single = *given,
                        _ => return Err(format!("{key:?} is none of sqlite, postgres, mysql and single")),
                    }
                }
                Ok(Self { texts, single })
            }
            _ => Err("a query is a text, or a table with one for sqlite, postgres and mysql".to_owned()),
        }
    }

    /// The text with placeholders, and what they stand for.
    fn bind(&self, engine: Engine, given: &Map<String, Value>) -> Result<(String, Vec<Value>), ToolError> {
        let Some(template) = &self.texts[engine as usize] else {
            return Err(tell("NOT_CONFIGURED", format!("This tool has no query for {engine:?}")));
        };
        let mut bound = Vec::new();
        let sql = template.with(|name| {
            bound.push(given.get(name).cloned().unwrap_or_default());
            engine.placeholder(bound.len())
        });
        Ok((sql, bound))
    }
}

impl Sql {
    pub(super) fn check(
        name: &Spanned<String>,
        sql: &file::Sql,
        database: &Arc<Database>,
        parameters: &Parameters,
        check: &mut Check<'_>,
    ) -> Option<Self> {
        let action = match sql {
            file::Sql {
                query: Some(query),
                statement: None,
                insert: None,
                update: None,
                describe: None,
                ..
            } => {
                let query = check.keep(query, Query::parse(query.get_ref(), |name| parameters.has(name)))?;
                Action::Fixed { query, write: sql.write }
            }
            file::Sql {
                statement: Some(statement),
                query: None,
                insert: None,
                update: None,
                describe: None,
                ..
            } => {
                if sql.write {
                    check.at(statement, "a statement that a model writes only ever reads");
                }
                Action::Statement {
                    parameter: parameters.named(statement, "string", check),
                    bind: sql.bind.as_ref().map(|bind| parameters.named(bind, "array", check)),
                }
            }
            file::Sql {
                insert: Some(insert),
                query: None,
                statement: None,
                update: None,
                describe: None,
                ..
            } => Action::Insert {
                table: parameters.named(&insert.table, "string", check),
                values: parameters.named(&insert.values, "object", check),
            },
            file::Sql {
                update: Some(update),
                query: None,
                statement: None,
                insert: None,
                describe: None,
                ..
            } => Action::Update {
                table: parameters.named(&update.table, "string", check),
                values: parameters.named(&update.values, "object", check),
                condition: parameters.named(&update.condition, "object", check),
            },
            file::Sql {
                describe: Some(table),
                query: None,
                statement: None,
                insert: None,
                update: None,
                ..
            } => Action::Describe { table: parameters.named(table, "string", check) },
            _ => {
                check.at(name, "sql has exactly one of query, statement, insert, update and describe");
                return None;
            }
        };
        Some(Self { database: Arc::clone(database), action })
    }

    pub(super) async fn ask(&self, given: &Map<String, Value>) -> Result<ToolOutput, ToolError> {
        let text = |name: &str| given.get(name).and_then(Value::as_str).unwrap_or_default();
        let database = &self.database;
        match &self.action {
            Action::Fixed { query, write } => {
                let (engine, _) = database.target()?;
                let (sql, bound) = query.bind(engine, given)?;
                let rows = if *write {
                    database.write(&sql, &bound).await?
                } else {
                    database.read(&sql, &bound).await?
                };
                Ok(output(rows.told(), None))
            }
            Action::Statement { parameter, bind } => {
                let sql = text(parameter);
                if sql.len() > MAX_STATEMENT {
                    return Err(invalid(format!("Argument '{parameter}' may have {MAX_STATEMENT} bytes")));
                }
                let bound = bind.as_ref().and_then(|name| given.get(name)?.as_array().cloned());
                Ok(output(database.read(sql, &bound.unwrap_or_default()).await?.told(), None))
            }
            Action::Insert { table, values } => {
                let table = database.table(text(table)).await?;
                let (sql, bound) = table.insert(database.target()?.0, object(given, values)?)?;
                Ok(output(database.write(&sql, &bound).await?.told(), None))
            }
            Action::Update { table, values, condition } => {
                let table = database.table(text(table)).await?;
                let (values, condition) = (object(given, values)?, object(given, condition)?);
                let (sql, bound) = table.update(database.target()?.0, values, condition)?;
                Ok(output(database.write(&sql, &bound).await?.told(), None))
            }
            Action::Describe { table } => Ok(output(database.table(text(table)).await?.told(), None)),
        }
    }
}

/// An argument that must say something.
fn object<'a>(given: &'a Map<String, Value>, name: &str) -> Result<&'a Map<String, Value>, ToolError> {
    let found = given.get(name).and_then(Value::as_object).filter(|found| !found.is_empty());
    found.ok_or_else(|| invalid(format!("Argument '{name}' must name at least one column")))
}
