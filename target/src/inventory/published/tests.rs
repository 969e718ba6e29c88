//! Tests of generations of exports, as cores and edits use them.

use super::*;
use crate::config::{Config, Medium, NamespaceSettings};
use crate::inventory::Inventory;
use crate::inventory::apply::Applied;
use crate::inventory::close::Closed;
use crate::inventory::edit::namespaces::NewNamespace;
use crate::inventory::error::ChangeError;
use crate::inventory::open::OpenPurpose;

const NQN: &str = "nqn.2026-01.io.feedrail:t";

const FIRST: SubsystemIndex = SubsystemIndex { slot: 0, serial: 0 };

fn inventory(dir: &std::path::Path) -> Arc<Inventory> {
    let text = format!(
        "state_dir = \"state\"\nmanagement = \"socket\"\n[[port]]\naddress = \"127.0.0.1\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = 4096\n"
    );
    let config = Config::from_toml(&dir.join("t.toml"), &text).expect("valid");
    Inventory::open(&config, OpenPurpose::Check).expect("opened")
}

fn nqn() -> nvme_proto::Nqn {
    nvme_proto::Nqn::new(NQN).expect("valid")
}

fn add(inventory: &Inventory, path: &std::path::Path) -> Result<Applied, ChangeError> {
    let medium = Medium::File { path: path.to_owned(), root: None };
    let spec = NamespaceSettings::new("file".into(), medium, true).into();
    let new = NewNamespace { nsid: None, spec, bdev: "file".into(), opened: None };
    inventory.edit(|edit| edit.add_namespace(&nqn(), new)).map(|(_, applied)| applied)
}

fn remove(inventory: &Inventory, nsid: Nsid) -> Result<NamespaceChange, ChangeError> {
    let (_, applied) = inventory.edit(|edit| edit.remove_namespace(&nqn(), nsid))?;
    Ok(applied.closing().remove(0))
}

#[test]
fn a_core_uses_one_generation_until_it_follows() {
    let dir = tempfile::tempdir().expect("a folder");
    let inventory = inventory(dir.path());
    let mut core = inventory.publication().join(Doorbell::new().expect("a descriptor"));
    assert!(!core.follow());
    let first = Arc::clone(core.list(FIRST));
    let removed = remove(&inventory, Nsid(1)).expect("it is there");
    let index = removed.namespace.index;
    assert!(core.namespace(index).is_some() && core.list(FIRST).get(Nsid(1)).is_some());
    assert!(!inventory.publication().wait_adopted(removed.generation, Duration::ZERO));
    assert!(core.follow());
    assert!(inventory.publication().wait_adopted(removed.generation, Duration::ZERO));
    assert!(core.namespace(index).is_none() && core.list(FIRST).get(Nsid(1)).is_none());
    assert!(core.draining_backend(index).is_some());
    assert!(first.get(Nsid(1)).is_some(), "a snapshot does not change");
    assert!(core.follow(), "it is not idle");
    assert_eq!(inventory.close(removed, Duration::ZERO), Closed::Busy);
    drop(first);
    core.report_idle();
    assert!(!core.follow());
    inventory.close_idle();
    assert!(core.draining_backend(index).is_none(), "it is closed");
}

#[test]
fn a_core_that_has_ended_keeps_nothing_open() {
    let dir = tempfile::tempdir().expect("a folder");
    let inventory = inventory(dir.path());
    let core = inventory.publication().join(Doorbell::new().expect("a descriptor"));
    let removed = remove(&inventory, Nsid(1)).expect("it is there");
    drop(core);
    assert_eq!(inventory.close(removed, Duration::ZERO), Closed::Flushed(Ok(())));
}

/// `Target::drain` does this when its threads have stopped.
#[test]
fn namespaces_that_are_busy_until_the_stop_are_closed() {
    let dir = tempfile::tempdir().expect("a folder");
    let inventory = inventory(dir.path());
    let mut core = inventory.publication().join(Doorbell::new().expect("a descriptor"));
    let removed = remove(&inventory, Nsid(1)).expect("it is there");
    assert!(core.follow());
    let open = Arc::downgrade(removed.namespace.backend());
    assert_eq!(inventory.close(removed, Duration::ZERO), Closed::Busy);
    inventory.close_idle();
    assert!(open.strong_count() > 0, "a core still uses it");
    drop(core);
    inventory.close_idle();
    assert_eq!((inventory.closing(), open.strong_count()), (0, 0));
}

#[test]
fn an_index_is_never_that_of_another_namespace() {
    let dir = tempfile::tempdir().expect("a folder");
    let inventory = inventory(dir.path());
    let path = dir.path().join("file");
    std::fs::write(&path, [0; 4096]).expect("written");
    let mut core = inventory.publication().join(Doorbell::new().expect("a descriptor"));
    let mut earlier = Vec::new();
    for _ in 0..3 {
        let added = add(&inventory, &path).expect("it is closed each time");
        let namespace = &added.added[0].namespace;
        let index = namespace.index;
        assert_eq!((namespace.nsid, index.slot), (Nsid(2), 1), "both are used again");
        drop(added);
        core.follow();
        core.report_idle();
        assert!(core.namespace(index).is_some());
        assert!(earlier.iter().all(|index| core.namespace(*index).is_none()));
        earlier.push(index);
        let again = add(&inventory, &path).expect_err("one user");
        assert!(matches!(again, ChangeError::Identifier(_)), "{again}");
        let removed = remove(&inventory, Nsid(2)).expect("it is there");
        core.follow();
        core.report_idle();
        assert_eq!(inventory.close(removed, Duration::ZERO), Closed::Flushed(Ok(())));
    }
    let missing = remove(&inventory, Nsid(2)).expect_err("it is gone");
    assert!(matches!(missing, ChangeError::NoNamespace { .. }), "{missing}");
}

#[test]
fn nothing_is_awaited_that_is_idle_on_all_cores() {
    let dir = tempfile::tempdir().expect("a folder");
    let inventory = inventory(dir.path());
    let mut core = inventory.publication().join(Doorbell::new().expect("a descriptor"));
    let path = dir.path().join("file");
    std::fs::write(&path, [0; 4096]).expect("written");
    let removed = remove(&inventory, Nsid(1)).expect("it is there");
    let added = add(&inventory, &path).expect("opened");
    core.follow();
    assert_eq!((Some(core.generation()), core.draining().len()), (added.generation, 1));
    core.report_idle();
    drop(removed);
    remove(&inventory, added.added[0].namespace.nsid).expect("it is there");
    core.follow();
    assert_eq!(core.draining().len(), 1, "only the one that was removed last");
}
