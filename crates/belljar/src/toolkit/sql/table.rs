//! A table as the catalogue knows it, and statements that name nothing else.

use belljar_tools::ToolError;
use serde_json::{Map, Value, json};

use super::{Engine, invalid};

#[derive(Debug, Default)]
pub(super) struct Table {
    /// Where the database has schemas.
    pub(super) schema: Option<String>,
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
}

#[derive(Debug, Default)]
pub(super) struct Column {
    pub(super) name: String,
    /// As the database writes it.
    pub(super) kind: String,
    /// A list of values.
    pub(super) array: bool,
    pub(super) nullable: bool,
    pub(super) default: Option<String>,
    pub(super) primary: bool,
}

impl Table {
    pub(super) fn told(&self) -> Value {
        let column = |column: &Column| {
            json!({
                "column": column.name,
                "type": column.kind,
                "nullable": column.nullable,
                "default": column.default,
                "primary_key": column.primary,
            })
        };
        let name = self
            .schema
            .as_ref()
            .map_or_else(|| self.name.clone(), |schema| format!("{schema}.{}", self.name));
        json!({ "table": name, "columns": self.columns.iter().map(column).collect::<Vec<_>>() })
    }

    fn quoted(&self, engine: Engine) -> String {
        let parts = self.schema.iter().chain([&self.name]);
        parts.map(|part| engine.quote(part)).collect::<Vec<_>>().join(".")
    }

    fn column(&self, name: &str) -> Result<&Column, ToolError> {
        self.columns.iter().find(|column| column.name == name).ok_or_else(|| {
            let known: Vec<_> = self.columns.iter().map(|column| column.name.as_str()).collect();
            invalid(format!("The table {:?} has no column {name:?}; it has: {}", self.name, known.join(", ")))
        })
    }

    pub(super) fn insert(
        &self,
        engine: Engine,
        values: &Map<String, Value>,
    ) -> Result<(String, Vec<Value>), ToolError> {
        let (mut names, mut places, mut bound) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in values {
            let column = self.column(name)?;
            names.push(engine.quote(&column.name));
            bound.push(column.value(engine, value));
            places.push(column.place(engine, bound.len()));
        }
        let table = self.quoted(engine);
        let sql = format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), places.join(", "));
        Ok((returning(engine, sql), bound))
    }

    pub(super) fn update(
        &self,
        engine: Engine,
        values: &Map<String, Value>,
        condition: &Map<String, Value>,
    ) -> Result<(String, Vec<Value>), ToolError> {
        let (mut sets, mut conditions, mut bound) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in values {
            let column = self.column(name)?;
            bound.push(column.value(engine, value));
            sets.push(format!("{} = {}", engine.quote(&column.name), column.place(engine, bound.len())));
        }
        for (name, value) in condition {
            let column = self.column(name)?;
            if value.is_null() {
                conditions.push(format!("{} IS NULL", engine.quote(&column.name)));
                continue;
            }
            bound.push(column.value(engine, value));
            conditions.push(format!(
                "{} = {}",
                engine.quote(&column.name),
                column.place(engine, bound.len())
            ));
        }
        let table = self.quoted(engine);
        let sql = format!("UPDATE {table} SET {} WHERE {}", sets.join(", "), conditions.join(" AND "));
        Ok((returning(engine, sql), bound))
    }
}

impl Column {
    /// PostgreSQL converts nothing by itself: a text is sent, and cast to what the catalogue says.
    fn place(&self, engine: Engine, number: usize) -> String {
        let place = engine.placeholder(number);
        match engine {
            Engine::Postgres if self.array => {
                format!(
                    "CAST(ARRAY(SELECT jsonb_array_elements_text(CAST({place} AS jsonb))) AS {})",
                    self.kind
                )
            }
            Engine::Postgres => format!("CAST(CAST({place} AS text) AS {})", self.kind),
            Engine::Sqlite | Engine::Mysql => place,
        }
    }

    fn value(&self, engine: Engine, value: &Value) -> Value {
        match value {
            Value::Null => Value::Null,
            Value::Array(_) | Value::Object(_) => Value::String(value.to_string()),
            Value::Number(_) | Value::Bool(_) if engine == Engine::Postgres => {
                Value::String(value.to_string())
            }
            other => other.clone(),
        }
    }
}

fn returning(engine: Engine, sql: String) -> String {
    match engine {
        Engine::Mysql => sql,
        Engine::Sqlite | Engine::Postgres => format!("{sql} RETURNING *"),
    }
}
