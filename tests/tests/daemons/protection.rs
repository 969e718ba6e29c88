//! Operators keep hosts from writing a namespace, and let them again; and they rename it.

use std::fs;

use feedrail_initiator::ErrorKind;
use feedrail_tests::process::{
    Bytes, DaemonOptions, feedrail, host, loopback_address, slice_of, write_configuration,
};
use nvme_proto::{Nsid, Status};

const NQN: &str = "nqn.2026-01.io.feedrail:protected";

#[test]
fn a_protection_lasts_until_it_is_undone() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for name in ["written", "read"] {
        fs::write(folder.path().join(name), Bytes::new(1).take(1 << 20)).unwrap();
    }
    let configuration = format!(
        "state_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
         [[port]]\naddress = \"{}:4420\"\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"written\"\nread_only = false\n\
         [[subsystem.namespace]]\npath = \"read\"\n",
        loopback_address()
    );
    let configuration = write_configuration(folder.path(), &configuration);
    let start = || DaemonOptions::default().arg("--config").arg(&configuration).start();
    let socket = folder.path().join("socket").display().to_string();
    let target = |words: &[&str]| {
        let at_socket = ["--socket", &socket];
        feedrail(["target"].iter().chain(words).chain(&at_socket)).run()
    };
    let protect = |nsid: &str| target(&["protect", NQN, nsid]);
    let undo = |nsid: &str| target(&["protect", NQN, nsid, "--undo"]);
    let is_read_only = || String::from_utf8(target(&["show"]).success()).unwrap().contains("ro");

    let mut daemon = start();
    for _ in 0..2 {
        let host = host().build().unwrap();
        let namespace = daemon.connect(&host).namespace(Nsid(1)).wait().unwrap();
        let bytes = Bytes::new(2).take(4096);
        let write = || namespace.write(4096, slice_of(&bytes)).wait().result;
        write().unwrap();
        protect("1").success();
        protect("1").success();
        let refused = |error: feedrail_initiator::Error| matches!(error.kind(), ErrorKind::Status(status) if status.is(Status::NAMESPACE_IS_WRITE_PROTECTED));
        assert!(refused(write().unwrap_err()));
        assert!(namespace.read_to_vec(4096, 4096).wait().unwrap() == bytes);
        assert!(daemon.terminate().0.success());
        daemon = start();
        assert!(is_read_only());
        assert!(refused(write().unwrap_err()), "it has lasted");
        undo("1").success();
        write().unwrap();
        assert_eq!(host.counters().connections_lost, 1, "only when the target was started again");
    }
    let state = folder.path().join("state");
    fs::rename(&state, folder.path().join("moved")).unwrap();
    fs::write(&state, "no folder").unwrap();
    assert!(protect("1").failure().contains("state"));
    let host = host().build().unwrap();
    let namespace = daemon.connect(&host).namespace(Nsid(1)).wait().unwrap();
    let bytes = Bytes::new(3).take(4096);
    // A protection that cannot be kept does not hold.
    namespace.write(0, slice_of(&bytes)).wait().result.unwrap();
    fs::remove_file(&state).unwrap();
    fs::rename(folder.path().join("moved"), &state).unwrap();
    protect("2").success();
    assert!(undo("2").failure().contains("added to be read only"));
    assert!(protect("3").failure().contains("has no namespace 3"));
    assert!(daemon.terminate().0.success());
}

#[test]
fn a_namespace_is_renamed_while_it_is_read() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("shard");
    fs::write(&path, Bytes::new(1).take(1 << 20)).unwrap();
    let configuration = format!(
        "state_dir = \"state\"\nprovider = \"soft\"\nmanagement = \"socket\"\n\
         [[port]]\naddress = \"{}:4420\"\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"shard\"\n",
        loopback_address()
    );
    let configuration = write_configuration(folder.path(), &configuration);
    let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
    let socket = folder.path().join("socket").display().to_string();
    let rename = |name: &str| {
        let command = ["target", "rename", NQN, "1", name, "--socket", &socket];
        feedrail(command).run()
    };
    let host = host().build().unwrap();
    let controller = daemon.connect(&host);
    let before = controller.namespace_named("shard").wait().unwrap();
    let changes = controller.namespace_changes(u64::MAX).wait().unwrap();
    rename("train/0").success();
    controller.namespace_changes(changes).wait().unwrap();
    assert_eq!(before.current_name().as_deref(), Some("train/0"));
    assert_eq!(before.info().name.as_deref(), Some("shard"));
    let after = controller.namespace_named("train/0").wait().unwrap();
    assert!(controller.namespace_named("shard").wait().is_err());
    assert_eq!((after.info().uuid, after.nsid()), (before.info().uuid, before.nsid()));
    for namespace in [&before, &after] {
        assert!(namespace.read_to_vec(0, 4096).wait().unwrap() == Bytes::new(1).take(4096));
    }
    assert!(rename("").failure().contains("1 to 1024 bytes"));
    assert!(daemon.terminate().0.success());
}
