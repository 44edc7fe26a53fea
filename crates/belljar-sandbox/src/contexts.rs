//! The live contexts, and whose they are. However many there are, one is found without a look at the others.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;

use crate::{Caller, context::Context, current::is_sandbox};

#[derive(Default)]
pub(crate) struct Contexts {
    by_id: HashMap<String, Arc<Context>>,
    callers: HashMap<Caller, Own>,
}

/// What one caller has.
#[derive(Default)]
struct Own {
    by_order: BTreeMap<u64, Arc<Context>>,
    /// Several may have the same name.
    by_name: HashMap<String, Vec<Arc<Context>>>,
    /// Those that may be the current sandbox. After a restart only the time says which is newer; within one time only the
    /// order does.
    sandboxes: BTreeMap<(Timestamp, u64), Arc<Context>>,
}

impl Contexts {
    /// Takes the place of one with the same id.
    pub(crate) fn insert(&mut self, context: Arc<Context>) {
        self.remove(&context.id);
        let own = self.callers.entry(context.caller.clone()).or_default();
        own.by_order.insert(context.order, Arc::clone(&context));
        own.by_name.entry(context.name.clone()).or_default().push(Arc::clone(&context));
        if is_sandbox(&context.name) {
            own.sandboxes.insert((context.created_at, context.order), Arc::clone(&context));
        }
        self.by_id.insert(context.id.clone(), context);
    }

    pub(crate) fn remove(&mut self, id: &str) {
        let Some(context) = self.by_id.remove(id) else { return };
        let Some(own) = self.callers.get_mut(&context.caller) else { return };
        own.by_order.remove(&context.order);
        own.sandboxes.remove(&(context.created_at, context.order));
        if let Some(namesakes) = own.by_name.get_mut(&context.name) {
            namesakes.retain(|other| other.id != id);
            if namesakes.is_empty() {
                own.by_name.remove(&context.name);
            }
        }
        if own.by_order.is_empty() {
            self.callers.remove(&context.caller);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Context>> {
        self.by_id.values()
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Arc<Context>> {
        self.by_id.get(id)
    }

    pub(crate) fn count_of(&self, caller: &Caller) -> usize {
        self.callers.get(caller).map_or(0, |own| own.by_order.len())
    }

    /// Newest first.
    pub(crate) fn of(&self, caller: &Caller) -> impl Iterator<Item = &Arc<Context>> {
        self.callers.get(caller).into_iter().flat_map(|own| own.by_order.values().rev())
    }

    pub(crate) fn named(&self, caller: &Caller, name: &str) -> &[Arc<Context>] {
        self.callers.get(caller).and_then(|own| own.by_name.get(name)).map_or(&[], Vec::as_slice)
    }

    /// Newest first.
    pub(crate) fn sandboxes_of(&self, caller: &Caller) -> impl Iterator<Item = &Arc<Context>> {
        self.callers.get(caller).into_iter().flat_map(|own| own.sandboxes.values().rev())
    }
}
