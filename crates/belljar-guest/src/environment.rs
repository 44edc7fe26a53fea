//! What programs of this sandbox find: variables that the host gave it after it was made, and where they start.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    process::Command,
};

pub(crate) type Changes = BTreeMap<String, Option<String>>;

#[derive(Default)]
pub(crate) struct Environment {
    changes: RefCell<Changes>,
    version: Cell<u64>,
    /// Where programs start that nobody sends elsewhere, if not in the workspace.
    pub(crate) workdir: Option<String>,
}

impl Environment {
    pub(crate) fn starting_in(workdir: Option<String>) -> Self {
        Self { workdir, ..Self::default() }
    }

    /// Later changes win. False when one cannot be: it has no name, or contains what no variable can.
    pub(crate) fn change(&self, changes: Changes) -> bool {
        let fine = |(name, value): (&String, &Option<String>)| {
            !name.is_empty() && !name.contains(['=', '\0']) && !value.iter().any(|value| value.contains('\0'))
        };
        if !changes.iter().all(fine) {
            return false;
        }
        self.changes.borrow_mut().extend(changes);
        self.version.set(self.version.get() + 1);
        true
    }

    pub(crate) fn apply(&self, command: &mut Command) {
        for (name, value) in self.changes.borrow().iter() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }

    /// What an interpreter does not know yet that knows all up to `seen`, which moves on.
    pub(crate) fn since(&self, seen: &mut u64) -> Changes {
        if std::mem::replace(seen, self.version.get()) == self.version.get() {
            return Changes::new();
        }
        self.changes.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: Option<&str>) -> Changes {
        BTreeMap::from([(name.to_owned(), value.map(str::to_owned))])
    }

    #[test]
    fn an_interpreter_hears_of_a_change_once() {
        let environment = Environment::default();
        let mut seen = 0;
        assert!(environment.since(&mut seen).is_empty());
        assert!(environment.change(set("A", Some("1"))) && environment.change(set("B", None)));
        let all = environment.since(&mut seen);
        assert_eq!(all, [set("A", Some("1")), set("B", None)].into_iter().flatten().collect());
        assert!(environment.since(&mut seen).is_empty());
        // One that starts later hears of everything.
        assert_eq!(environment.since(&mut 0), all);
    }

    #[test]
    fn what_is_no_variable_changes_nothing() {
        let environment = Environment::default();
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0y")] {
            assert!(!environment.change(set(name, Some(value))), "{name:?} {value:?}");
        }
        assert!(environment.since(&mut 0).is_empty());
    }
}
