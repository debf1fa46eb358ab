//! What runs, of one kind, by the id under which it was started; who asks for what is not there is told by name.

use std::collections::BTreeMap;

use partywall_wire::Fault;

use crate::dispatch::failed;

/// All that runs of one kind.
pub(crate) struct Running<T> {
    /// What it is called in messages.
    kind: &'static str,
    by_id: BTreeMap<String, T>,
}

impl<T> Running<T> {
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self { kind, by_id: BTreeMap::new() }
    }

    /// Nothing runs under this id yet.
    pub(crate) fn vacant(&self, id: &str) -> Result<(), Fault> {
        if self.by_id.contains_key(id) {
            return Err(failed(format!("{} {id:?} is running already", self.kind)));
        }
        Ok(())
    }

    pub(crate) fn insert(&mut self, id: &str, one: T) {
        self.by_id.insert(id.into(), one);
    }

    pub(crate) fn get(&mut self, id: &str) -> Result<&mut T, Fault> {
        self.by_id.get_mut(id).ok_or_else(|| missing(self.kind, id))
    }

    /// Does something with one of them; what keeps it from that is told with its name.
    pub(crate) fn with<R>(&mut self, id: &str, act: impl FnOnce(&mut T) -> Result<R, String>) -> Result<R, Fault> {
        let kind = self.kind;
        act(self.get(id)?).map_err(|why| failed(format!("{kind} {id:?}: {why}")))
    }

    /// It is no longer here.
    pub(crate) fn take(&mut self, id: &str) -> Result<T, Fault> {
        self.by_id.remove(id).ok_or_else(|| missing(self.kind, id))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.by_id.iter()
    }

    /// Takes out those that `ended` gives a reason for.
    pub(crate) fn take_where(&mut self, ended: impl Fn(&mut T) -> Option<String>) -> Vec<(String, T, String)> {
        let over: Vec<(String, String)> = self.by_id.iter_mut().filter_map(|(id, one)| Some((id.clone(), ended(one)?))).collect();
        over.into_iter().filter_map(|(id, reason)| self.by_id.remove(&id).map(|one| (id, one, reason))).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

fn missing(kind: &str, id: &str) -> Fault {
    failed(format!("no {kind} {id:?} is running"))
}
