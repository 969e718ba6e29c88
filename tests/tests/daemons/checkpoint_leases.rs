//! Leases of checkpoint volumes: writers that are refused, too late, or begin together.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use feedrail_checkpoint::Error;
use feedrail_checkpoint_store::{
    CheckpointStore, FormatOptions, ReplicatedStore, StoreError, StoreOptions, VolumeNamespace,
};
use feedrail_initiator::RdmaProvider;
use feedrail_tests::process::{
    Bytes, DaemonOptions, eventually, host, loopback_address, write_configuration,
};

use super::checkpoint_volume::{MIB, Volume};

#[test]
fn a_second_writer_is_refused() {
    let volume = Volume::formatted(16 * MIB, "shm");
    let source = volume.source("source", b"bytes");
    let host = host().build().unwrap();
    let place = VolumeNamespace::connect(&host, &volume.url().parse().unwrap()).unwrap();
    let store = CheckpointStore::open_writer(&place, StoreOptions::default()).unwrap();
    let mut save = store.begin("mine", 7, Vec::new()).unwrap();
    save.write("weights", &[1; 1_500_000]).unwrap();

    let line = volume.command(&["put"], &["other", &source]).run().failure();
    let id = host.id().to_string();
    assert!(line.contains(&id) && line.contains("its lease ends in"), "{line}");
    let lease = &volume.json(&["show"], &[])["lease"];
    assert_eq!(lease["host"], id);
    assert_eq!(volume.names(), [""; 0]);
    let other = CheckpointStore::open_writer(&place, StoreOptions::default());
    assert!(matches!(other, Err(StoreError::Leased { .. })), "{other:?}");

    save.commit().unwrap();
    store.close().unwrap();
    volume.command(&["put"], &["other", &source]).run().success();
    assert_eq!(volume.names(), ["mine", "other"]);
}

/// Both find the lease free: the one whose superblock is overwritten is refused before it writes.
#[test]
fn of_writers_that_begin_together_one_has_the_lease() {
    let volume = Volume::formatted(16 * MIB, "shm");
    let hosts = [(); 2].map(|()| host().provider(RdmaProvider::Shm).build().unwrap());
    let place = |host| VolumeNamespace::connect(host, &volume.url().parse().unwrap()).unwrap();
    let places = [place(&hosts[0]), place(&hosts[1])];
    for round in 0..8 {
        let barrier = Barrier::new(places.len());
        let open = |place| {
            barrier.wait();
            CheckpointStore::open_writer(place, StoreOptions::default())
        };
        let opened = thread::scope(|scope| {
            let threads = [0, 1].map(|index| {
                let place = &places[index];
                let open = &open;
                scope.spawn(move || open(place))
            });
            threads.map(|thread| thread.join().unwrap())
        });
        let winner = usize::from(opened[0].is_err());
        match &opened[1 - winner] {
            Err(StoreError::Leased { host, .. }) => {
                assert_eq!(host.into_bytes(), hosts[winner].id().0);
            }
            other => panic!("two writers in round {round}: {other:?}"),
        }
        let [first, second] = opened;
        let store = if winner == 0 { first } else { second }.unwrap();
        let mut save = store.begin(&format!("step-{round}"), round, Vec::new()).unwrap();
        save.keep(1);
        save.write("weights", &[1; 10_000]).unwrap();
        save.commit().unwrap();
        store.close().unwrap();
    }
}

/// A store that only renews its lease keeps it.
#[test]
fn a_lease_is_renewed_between_saves() {
    let volume = Volume::formatted(16 * MIB, "shm");
    let host = host().build().unwrap();
    let place = VolumeNamespace::connect(&host, &volume.url().parse().unwrap()).unwrap();
    let options = StoreOptions { lease: Duration::from_secs(2), ..StoreOptions::default() };
    let mut store = ReplicatedStore::open_writer(vec![Ok(place)], 1, options).unwrap();
    let end = |store: &ReplicatedStore| store.newest().unwrap().summary().lease.unwrap().expiry_ms;
    let first = end(&store);
    eventually("it renews the lease", || {
        store.renew_if_due().unwrap();
        end(&store) > first
    });
    store.close().unwrap();
}

/// A target of memory that delays each operation by half a second, so that a renewal and a commit
/// take five of the four seconds of the lease: the superblock is not sent.
#[test]
fn a_lease_that_ends_in_the_commit_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let configuration = format!(
        r#"
        [[port]]
        address = "{}:4420"

        [[subsystem]]
        nqn = "nqn.2026-01.org.example:slow"
        allow_any_host = true
        [[subsystem.namespace]]
        kind = "memory"
        size_bytes = "16MiB"
        read_only = false
        faults = {{ delay_us = 500_000 }}
        "#,
        loopback_address(),
    );
    let file = write_configuration(folder.path(), &configuration);
    let daemon = DaemonOptions::default().arg("--config").arg(file).start();
    let host = host().build().unwrap();
    let url = format!("nvmf://{}/{}", daemon.address(), daemon.nqn());
    let place = VolumeNamespace::connect(&host, &url.parse().unwrap()).unwrap();
    CheckpointStore::format(&place, &FormatOptions::default()).unwrap();
    let options = StoreOptions { lease: Duration::from_secs(4), ..StoreOptions::default() };
    let store = CheckpointStore::open_writer(&place, options).unwrap();
    let free_bytes = store.summary().free_bytes;
    let saved = store.begin("one", 1, Vec::new()).and_then(|mut save| {
        save.write("weights", &Bytes::new(77).take(4096))?;
        save.commit()
    });
    let error = saved.unwrap_err();
    assert_eq!(error.volume(), Some(&Error::NoLease), "{error}");
    let reader = CheckpointStore::open(&place, StoreOptions::default()).unwrap();
    assert_eq!(reader.list(), []);
    assert_eq!(store.summary().free_bytes, free_bytes, "its space is leaked");
}
