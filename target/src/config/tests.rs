//! Tests that correct configurations are understood, and mistakes reported with their place.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nvme_proto::Nsid;
use proptest::prelude::*;

use super::units::{parse_bytes, show_bytes};
use super::*;
use crate::core_context::pool::{PoolPlan, UNIT_BYTES};
use crate::limits::{CntlidRange, MAX_POOL_BYTES};

const GOOD: &str = r#"
provider = "soft"
cores = [0, 2]
polling_us = 0
state_dir = "state"

[limits]
queue_depth = 64
pool_bytes = "128MiB"

[[port]]
address = "192.0.2.1"

[[port]]
id = 7
address = "[2001:db8::1]:4421"
subsystems = ["nqn.2026-01.io.feedrail:b"]

[[subsystem]]
nqn = "nqn.2026-01.io.feedrail:a"
allowed_hosts = ["nqn.2026-01.io.feedrail:host.one"]

[[subsystem.namespace]]
path = "a/shard.tar"

[[subsystem.namespace]]
nsid = 1
path = "/data/other.tar"
read_only = false
lba_bytes = 4096
uuid = "6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b11"
nguid = "00112233445566778899aabbccddeeff"

[[subsystem]]
nqn = "nqn.2026-01.io.feedrail:b"
serial = "S1"
model = "Shards"
allow_any_host = true
dataset_id = "6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b12"

[[subsystem.directory]]
path = "shards"
suffix = ".tar"

[[subsystem.namespace]]
nsid = 100
kind = "memory"
size_bytes = "1GiB"

[subsystem.namespace.faults]
fail_every = 100
fail_with = "no_space"
delay_us = 1500
"#;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::from_toml(Path::new("/etc/feedrail.toml"), text)
}

#[test]
fn a_group_may_share_memory() {
    assert_eq!(parse(GOOD).expect("valid").shared_memory_group, None);
    let group = GOOD.replace("cores", "shared_memory_group = \"root\"\ncores");
    let group = parse(&group).expect("valid").shared_memory_group;
    assert_eq!(group.map(|group| group.id()), Some(0));
}

#[test]
fn send_with_invalidate_can_be_switched_off() {
    assert!(parse(GOOD).expect("valid").send_with_invalidate);
    let off = GOOD.replace("cores", "send_with_invalidate = false\ncores");
    assert!(!parse(&off).expect("valid").send_with_invalidate);
}

#[test]
fn content_can_be_named() {
    let named = GOOD.replace("suffix = \".tar\"", "suffix = \".tar\"\ncontent_id = \"v7\"");
    let config = parse(&named).expect("valid");
    assert_eq!(config.subsystems[1].directories[0].content_id.as_deref(), Some("v7"));
    let error = parse(&named.replace("v7", "")).expect_err("empty").to_string();
    assert!(error.contains("content_id") || error.contains("is empty"), "{error}");
}

#[test]
fn direct_io_is_chosen_for_each_namespace() {
    let config = parse(GOOD).expect("valid");
    let [a, b] = &config.subsystems[..] else { panic!("two subsystems") };
    let chosen = [a.namespaces[0].direct_io, b.directories[0].direct_io];
    assert_eq!(chosen, [DirectIo::Auto; 2]);
    for (text, expected) in
        [("auto", DirectIo::Auto), ("always", DirectIo::Always), ("never", DirectIo::Never)]
    {
        let key = format!("direct_io = \"{text}\"");
        let in_both = GOOD
            .replace("path = \"a/shard.tar\"", &format!("path = \"a/shard.tar\"\n{key}"))
            .replace("suffix = \".tar\"", &format!("suffix = \".tar\"\n{key}"));
        let config = parse(&in_both).expect("valid");
        let [a, b] = &config.subsystems[..] else { panic!("two subsystems") };
        assert_eq!([a.namespaces[0].direct_io, b.directories[0].direct_io], [expected; 2]);
    }
    let in_memory = GOOD.replace("kind = \"memory\"", "kind = \"memory\"\ndirect_io = \"never\"");
    let error = parse(&in_memory).expect_err("there is no file").to_string();
    assert!(error.contains("direct_io: memory and null namespaces do no I/O"), "{error}");
}

#[test]
fn everything_arrives() {
    let config = parse(GOOD).expect("valid");
    assert_eq!(config.provider, ProviderChoice::Soft);
    assert_eq!(config.cores, Cores::Pinned(vec![0, 2]));
    assert_eq!(config.polling, Duration::ZERO);
    assert_eq!(config.state_dir, PathBuf::from("/etc/state"));
    assert_eq!((config.limits.queue_depth, config.limits.pool_bytes), (64, 128 << 20));
    let [one, seven] = &config.ports[..] else { panic!("two ports") };
    assert_eq!((one.id, one.address), (1, "192.0.2.1:4420".parse().expect("an address")));
    assert_eq!(seven.subsystems.as_ref().map(Vec::len), Some(1));

    let [a, b] = &config.subsystems[..] else { panic!("two subsystems") };
    assert_eq!(
        a.hosts,
        HostPolicy::Listed(vec![Nqn::new("nqn.2026-01.io.feedrail:host.one").expect("valid")])
    );
    let [shard, other] = &a.namespaces[..] else { panic!("two namespaces") };
    // The explicit NSID is used; a relative path is relative to the file.
    assert_eq!((shard.nsid, other.nsid), (Nsid(2), Nsid(1)));
    assert_eq!(shard.medium, Medium::File { path: "/etc/a/shard.tar".into(), root: None });
    assert_eq!((&*shard.name, shard.writable, shard.block_shift), ("shard.tar", false, None));
    let shift = other.block_shift.map(BlockShift::get);
    assert_eq!((other.writable, shift, other.nguid[15]), (true, Some(12), 0xFF));
    assert_eq!((b.serial.text(), b.model.text()), (Some("S1"), Some("Shards")));
    assert_eq!(b.directories[0].suffix, ".tar");
    assert_eq!(b.namespaces[0].medium, Medium::Memory { size_bytes: 1 << 30 });
    assert!(b.namespaces[0].writable);
    let faults = DiskFaults {
        fail_every: Some(100),
        fail_with: BackendError::from_errno(libc::ENOSPC),
        delay: Some(Duration::from_micros(1500)),
        tear_every: None,
    };
    assert_eq!((b.namespaces[0].faults, shard.faults), (faults, DiskFaults::NONE));
    assert_eq!(b.namespaces[0].origin.0, "/etc/feedrail.toml:45: subsystem.namespace");
}

#[test]
fn a_dataset_is_the_same_wherever_it_lies() {
    let named = "nqn = \"nqn.2026-01.io.feedrail:a\"";
    let dataset = format!("{named}\ndataset_id = \"6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b11\"");
    let of_dataset = GOOD.replace(named, &dataset);
    let uuid = |text: &str| parse(text).expect("valid").subsystems[0].namespaces[0].uuid;
    let moved = |text: &str| text.replace("a/shard.tar", "/elsewhere/shard.tar");
    assert_eq!(uuid(&of_dataset), uuid(&moved(&of_dataset)));
    assert_ne!(uuid(&of_dataset), uuid(&of_dataset.replace("a/shard.tar", "a/shard2.tar")));
    assert_ne!(uuid(GOOD), uuid(&moved(GOOD)), "without a dataset it is the file of this path");
}

#[test]
fn controller_ids_can_be_divided_among_targets() {
    let text = GOOD.replace("[limits]", "[limits]\ncntlid_min = 100\ncntlid_max = 199");
    let cntlids = parse(&text).expect("valid").limits.cntlids;
    assert_eq!((cntlids.first, cntlids.last, cntlids.count()), (100, 199, 100));
    assert_eq!(parse(GOOD).expect("valid").limits.cntlids, CntlidRange::ALL);
}

#[test]
fn keys_that_are_read_at_the_start_are_told() {
    let good = parse(GOOD).expect("valid");
    let differences = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        good.differences_at_start(&parse(&GOOD.replacen(from, to, 1)).expect("valid"))
    };
    assert_eq!(good.differences_at_start(&good), [""; 0]);
    assert_eq!(differences("provider = \"soft\"", "provider = \"shm\""), ["provider"]);
    assert_eq!(differences("provider", "\n# moved\nprovider"), [""; 0]);
    assert_eq!(differences("allow_any_host = true", "allowed_hosts = []"), [""; 0]);
    assert_eq!(differences("\nserial = \"S1\"", "\nserial = \"S2\""), [""; 0]);
    assert_eq!(differences("subsystems = [\"nqn.2026-01.io.feedrail:b\"]", ""), [""; 0]);
    assert_eq!(differences("id = 7", "id = 8"), [""; 0]);
    assert_eq!(differences("queue_depth = 64", "queue_depth = 32"), ["limits"]);
}

#[test]
fn what_is_managed_may_be_empty_at_the_start() {
    let ports = "[[port]]\naddress = \"192.0.2.1\"\n";
    let empty = "[[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:a\"\nallow_any_host = true\n";
    for subsystems in ["", empty] {
        let refusal = parse(&format!("{ports}{subsystems}")).expect_err("nothing is exported");
        assert!(refusal.to_string().contains("management = "), "{refusal}");
        let managed = format!("management = \"socket\"\n{ports}{subsystems}");
        let config = parse(&managed).expect("namespaces may come");
        assert_eq!(config.subsystems.len(), usize::from(!subsystems.is_empty()));
    }
}

#[test]
fn quick_targets_of_two_machines_differ() {
    let quick = |machine, port| {
        let quick = Quick {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], port))],
            paths: vec!["a.bin".into()],
            writable: false,
            direct_io: DirectIo::default(),
            nqn: None,
            provider: ProviderChoice::Auto,
            cores: Cores::Count(1),
            machine: Some(Machine::with_id(Uuid::from_u128(machine))),
        };
        let subsystem = Config::quick(quick).expect("valid").subsystems.remove(0);
        (subsystem.nqn.to_string(), subsystem.serial, subsystem.namespaces[0].uuid)
    };
    let (one, other_machine, other_port) = (quick(1, 4420), quick(2, 4420), quick(1, 4421));
    assert_eq!(one, quick(1, 4420));
    for other in [other_machine, other_port] {
        assert!(one.0 != other.0 && one.1 != other.1 && one.2 != other.2, "{one:?} {other:?}");
    }
}

/// Each case: the text to replace in the correct file, its replacement, and a part of the error
/// message.
const WRONG: &[(&str, &str, &str)] = &[
    (
        "provider = \"soft\"",
        "provider = \"fast\"",
        "/etc/feedrail.toml:2:12: provider: unknown variant `fast`",
    ),
    (
        "provider = \"soft\"",
        "shared_memory_group = \"no-such-group\"",
        "/etc/feedrail.toml:2:23: shared_memory_group: there is no group \"no-such-group\" on this",
    ),
    ("fail_every = 100", "fail_every = 0", "faults.fail_every: is 0; must be 1 to"),
    ("\"no_space\"", "\"bang\"", "unknown variant `bang`"),
    ("cores = [0, 2]", "cores = [2, 2]", "3:9: cores: core 2 is listed twice"),
    (
        "cores = [0, 2]",
        "cores = [0, 1024]",
        "3:9: cores: no thread can be pinned to core 1024; name cores from 0 to 1023",
    ),
    ("cores = [0, 2]", "cores = [65535]", "cores: no thread can be pinned to core 65535"),
    ("cores = [0, 2]", "cores = 0", "cores: the number of cores must be 1 to 255"),
    ("cores = [0, 2]", "cores = 500", "cores: the number of cores must be 1 to 255"),
    ("cores = [0, 2]", "cores = \"all\"", "expected a number of cores, or a list"),
    ("polling_us = 0", "polling_us = -1", "4:14: polling_us: "),
    ("queue_depth = 64", "queue_depth = 1", "8:15: limits.queue_depth: is 1; must be 2 to 1024"),
    (
        "queue_depth = 64",
        "queue_dept = 64",
        "8:1: limits.queue_dept: unknown field `queue_dept`, expected one of",
    ),
    ("\"128MiB\"", "\"128MB\"", "9:14: limits.pool_bytes: "),
    ("\"128MiB\"", "4096", "limits.pool_bytes: must be at least 8MiB: each of 2 cores needs"),
    (
        "pool_bytes = \"128MiB\"",
        "max_transfer_bytes = \"16MiB\"\npool_bytes = \"127MiB\"",
        "at least 128MiB",
    ),
    ("\"128MiB\"", "\"1025GiB\"", "9:14: limits.pool_bytes: must be at most 1TiB"),
    ("\"128MiB\"", "\"18446744073709551615\"", "limits.pool_bytes: must be at most"),
    (
        "pool_bytes",
        "max_transfer_bytes = 5000\npool_bytes",
        "is 5000; must be a power of two from 4KiB to 16MiB",
    ),
    (
        "pool_bytes",
        "connections = 8\nconnections_per_host = 9\npool_bytes",
        "connections_per_host: is 9; must be 1 to 8",
    ),
    ("pool_bytes", "in_capsule_data_bytes = 100\npool_bytes", "must be a multiple of 16"),
    (
        "pool_bytes",
        "host_timeout_ms = 5\npool_bytes",
        "host_timeout_ms: is 5; must be 100 to 600000",
    ),
    ("pool_bytes", "cntlid_min = 0\npool_bytes", "cntlid_min: is 0; must be 1 to 65519"),
    (
        "pool_bytes",
        "cntlid_min = 9\ncntlid_max = 8\npool_bytes",
        "cntlid_max: is 8; must be 9 to 65519",
    ),
    (
        "\"192.0.2.1\"",
        "\"[fe80::1%eth0]:4420\"",
        "12:11: port.address: \"[fe80::1%eth0]:4420\" is a link-local",
    ),
    ("\"192.0.2.1\"", "\"fe80::1\"", "12:11: port.address: \"fe80::1\" is a link-local address"),
    (
        "\"192.0.2.1\"",
        "\"224.0.0.1\"",
        "12:11: port.address: \"224.0.0.1\" is no address of an interface",
    ),
    ("\"192.0.2.1\"", "\"0.0.0.0:0\"", "12:11: port.address: \"0.0.0.0:0\" needs a port number"),
    ("\"192.0.2.1\"", "\"storage1\"", "port.address: \"storage1\" is no address; write IP:PORT"),
    ("id = 7", "id = 1", "has the same id (1)"),
    (
        "subsystems = [\"nqn.2026-01.io.feedrail:b\"]",
        "subsystems = []",
        "14:1: port: subsystems is empty",
    ),
    ("id = 7", "id = 0", "15:6: port.id: is 0; must be 1 to 65535"),
    (
        "subsystems = [\"nqn.2026-01.io.feedrail:b\"]",
        "subsystems = [\"nqn.2026-01.io.feedrail:c\"]",
        "17:15: port.subsystems: no [[subsystem]] is named",
    ),
    (
        "nqn = \"nqn.2026-01.io.feedrail:b\"",
        "nqn = \"nqn.2026-01.io.feedrail:a\"",
        "35:7: subsystem.nqn: another subsystem has this name",
    ),
    (
        "[limits]",
        "discovery_nqn = \"nqn.2026-01.io.feedrail:a\"\n[limits]",
        "discovery_nqn: a subsystem has this name",
    ),
    (
        "nqn = \"nqn.2026-01.io.feedrail:b\"",
        "nqn = \"nqn.2014-08.org.nvmexpress.discovery\"",
        "discovery service",
    ),
    (
        "nqn = \"nqn.2026-01.io.feedrail:b\"",
        "nqn = \"\"",
        "35:7: subsystem.nqn: \"\" is no NQN (an NQN must not be empty)",
    ),
    (
        "nqn = \"nqn.2026-01.io.feedrail:b\"",
        "nqn = \"nqn.2026-01.io.feedrail:\\nb\"",
        r#"35:7: subsystem.nqn: "nqn.2026-01.io.feedrail:\nb" is no NQN"#,
    ),
    (
        "nqn = \"nqn.2026-01.io.feedrail:b\"",
        "nqn = \"foo\"",
        r#"35:7: subsystem.nqn: "foo" is no NQN (an NQN begins with "nqn."); write nqn.YYYY-MM."#,
    ),
    (
        "nqn = \"nqn.2026-01.io.feedrail:b\"",
        "nqn = \"nqn.2026-01.io.feedrail:\\u009b\"",
        r#""nqn.2026-01.io.feedrail:\u{9b}" is no NQN (an NQN must not contain control"#,
    ),
    (
        "allowed_hosts = [\"nqn.2026-01.io.feedrail:host.one\"]",
        "allowed_hosts = [\"\"]",
        "subsystem.allowed_hosts: \"\" is no name of a host: an NQN must not be empty",
    ),
    ("nqn = \"nqn.2026-01.io.feedrail:b\"\n", "", "missing field `nqn`"),
    (
        "serial = \"S1\"",
        "serial = \"123456789012345678901\"",
        "36:10: subsystem.serial: must be 1 to 20 printable",
    ),
    (
        "model = \"Shards\"",
        "model = \"Sch\u{fc}ssel\"",
        "subsystem.model: must be 1 to 40 printable",
    ),
    ("allow_any_host = true", "", "allows no host to connect; add allowed_hosts"),
    (
        "allow_any_host = true",
        "allow_any_host = true\nallowed_hosts = []",
        "has both allow_any_host and allowed_hosts",
    ),
    ("dataset_id = \"6f1c", "dataset_id = \"xx1c", "39:14: subsystem.dataset_id: "),
    ("nsid = 100", "nsid = 0", "46:8: subsystem.namespace.nsid: is 0; must be 1 to 65536"),
    (
        "path = \"a/shard.tar\"",
        "nsid = 1\npath = \"x\"",
        "another namespace of this subsystem has this nsid",
    ),
    ("path = \"a/shard.tar\"", "", "subsystem.namespace: path is missing"),
    (
        "path = \"a/shard.tar\"",
        "path = \"x\"\nsize_bytes = 4096",
        "a file or block device has its own size",
    ),
    ("path = \"a/shard.tar\"", "path = \"x\"\nkind = \"disk\"", "unknown variant `disk`"),
    (
        "size_bytes = \"1GiB\"",
        "size_bytes = 1000",
        "48:14: subsystem.namespace.size_bytes: must be a positive multiple of the block size, 512",
    ),
    (
        "size_bytes = \"1GiB\"",
        "size_bytes = 1024\npath = \"x\"",
        "memory and null namespaces have no file",
    ),
    ("size_bytes = \"1GiB\"", "", "size_bytes is missing"),
    ("size_bytes = \"1GiB\"", "size_bytes = -5", "cannot be negative"),
    (
        "lba_bytes = 4096",
        "lba_bytes = 8192",
        "30:13: subsystem.namespace.lba_bytes: is 8192; must be 512",
    ),
    (
        "nguid = \"0011",
        "nguid = \"zz11",
        "subsystem.namespace.nguid: must be 32 hexadecimal digits",
    ),
    (
        "path = \"/data/other.tar\"",
        "path = \"/data/shard.tar\"\nname = \"\"",
        "subsystem.namespace.name: must be 1 to",
    ),
    (
        "[[subsystem.directory]]\n",
        "[[subsystem.directory]]\nrecursive = true\n",
        "subsystem.directory.recursive: unknown field",
    ),
    ("polling_us = 0", "polling_us = ", "4:"),
    ("[[port]]", "[port]", "feedrail.toml:11:1: port: write [[port]] here: there may be several"),
    (
        "lba_bytes = 4096",
        "description = \"a\\tb\"",
        "30:15: subsystem.namespace.description: must be",
    ),
    ("lba_bytes = 4096", "ana_group = 17", "must be a group of 1 to 16"),
    ("lba_bytes = 4096", "ana_group = 0", "must be a group of 1 to 16"),
    (
        "lba_bytes = 4096",
        "visible_to = [\"foo\"]",
        "\"foo\" is no name of a host: an NQN begins with \"nqn.\"; write",
    ),
    (
        "lba_bytes = 4096",
        "visible_to = [\"nqn.2026-01.io.feedrail:a \"]",
        "is no name of a host: it has a space or a line end at one of its ends",
    ),
    ("lba_bytes = 4096", "visible_to = [\"\"]", "is no name of a host: an NQN must not be empty"),
    ("[[port]]", "[[ports]]", "11:1: ports: write [[port]] here"),
    ("[limits]", "[[limits]]", "7:1: limits: write [limits] here: there is one"),
    (
        "[[subsystem.namespace]]\npath",
        "[[namespace]]\npath",
        "23:1: namespace: write [[subsystem.namespace]] here: it is part of the [[subsystem]] above it",
    ),
    (
        "[[subsystem.namespace]]\nnsid = 100",
        "[subsystem.namespace] # one\nnsid = 100",
        "subsystem.namespace: write [[subsystem.namespace]] here",
    ),
    ("cores = [0, 2]", "cores 1", "cores: no `=` follows the key; write cores = VALUE"),
    ("suffix = \".tar\"", "suffix", "suffix: no `=` follows the key"),
];

#[test]
fn everything_wrong_is_told_with_its_place() {
    for (right, wrong, expected) in WRONG {
        assert!(GOOD.contains(right), "{right}");
        let text = GOOD.replacen(right, wrong, 1);
        let error = parse(&text).map(|_| ()).expect_err(wrong).to_string();
        assert!(error.contains(expected), "{wrong}\n  says: {error}\n  not: {expected}");
        assert!(!error.contains('\n'), "one line: {error}");
    }
}

#[test]
fn every_usable_core_can_be_configured() {
    let config = parse(&GOOD.replace("cores = [0, 2]", "cores = [1023]")).expect("valid");
    assert_eq!(config.cores, Cores::Pinned(vec![1023]));
}

#[test]
fn the_largest_pool_has_numberable_units() {
    let config = parse(&GOOD.replace("128MiB", "1TiB")).expect("valid");
    assert_eq!(config.limits.pool_bytes, MAX_POOL_BYTES);
    // One core has all of the pool, or many have it in blocks of the largest size, which rounds it
    // up.
    for (cores, block_bytes) in [(1, 8192), (1024, 32 << 20)] {
        let bytes = PoolPlan::new(MAX_POOL_BYTES, cores, block_bytes).memory_bytes() as u64;
        assert!(bytes >= MAX_POOL_BYTES);
        assert!(u32::try_from(bytes / UNIT_BYTES as u64).is_ok_and(|units| units < u32::MAX));
    }
}

#[test]
fn the_default_pool_suffices_for_all_cores() {
    let text = |cores| GOOD.replace("pool_bytes = \"128MiB\"", "").replace("[0, 2]", cores);
    assert_eq!(parse(&text("2")).unwrap().limits.pool_bytes, 64 << 20);
    assert_eq!(parse(&text("32")).unwrap().limits.pool_bytes, 128 << 20);
    let listen = vec!["127.0.0.1:4420".parse().unwrap()];
    let (files, cores) = (vec!["a".into()], Cores::Count(32));
    let quick = Config::quick(Quick {
        listen,
        paths: files,
        writable: false,
        direct_io: DirectIo::default(),
        nqn: None,
        provider: ProviderChoice::Auto,
        cores,
        machine: Some(Machine::with_id(Uuid::from_u128(1))),
    })
    .unwrap();
    assert_eq!(quick.limits.pool_bytes, 128 << 20);
}

#[test]
fn two_namespaces_do_not_share_an_identity() {
    let text = GOOD.replace("uuid = \"6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b11\"\n", "");
    let twin = text.replace("/data/other.tar", "/etc/a/shard.tar");
    let error = parse(&twin).map(|_| ()).expect_err("the same file").to_string();
    assert!(error.contains("has the UUID"), "{error}");
    assert!(parse(&text).is_ok());
}

#[test]
fn identifiers_name_one_disk() {
    const ID: &str = "6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b11";
    let zeros =
        |ids: &str| format!("[[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 4096\n{ids}\n");
    let file = |ids: &str| format!("[[subsystem.namespace]]\npath = \"shard\"\n{ids}\n");
    let subsystem = |name: &str, rest: &str| {
        let nqn = format!("nqn = \"nqn.2026-01.io.feedrail:{name}\"\nallow_any_host = true\n");
        format!("[[subsystem]]\n{nqn}{rest}\n")
    };
    let port = "[[port]]\naddress = \"127.0.0.1\"\n";
    let (uuid, nguid) = (format!("uuid = \"{ID}\""), format!("nguid = \"{ID}\""));
    let nil = Uuid::nil();
    let dataset = |path: &str| {
        format!("dataset_id = \"{ID}\"\n[[subsystem.namespace]]\nname = \"n\"\npath = \"{path}\"\n")
    };
    for (text, expected) in [
        (subsystem("a", &zeros(&format!("uuid = \"{nil}\""))), Some("the nil UUID")),
        (subsystem("a", &zeros(&format!("nguid = \"{nil}\""))), Some("the nil NGUID")),
        (subsystem("a", &(zeros(&nguid) + &zeros(&nguid))), Some("has the NGUID 6f1c1b0e6f7b")),
        // A namespace without an NGUID has that of its UUID.
        (subsystem("a", &(zeros(&uuid) + &zeros(&nguid))), Some("has the NGUID 6f1c1b0e6f7b")),
        (
            subsystem("a", &file(&uuid)) + &subsystem("b", &zeros(&uuid)),
            Some("has the UUID 6f1c1b0e-"),
        ),
        (subsystem("a", &file(&uuid)) + &subsystem("b", &file(&uuid)), None),
        (subsystem("a", &dataset("one")) + &subsystem("b", &dataset("two")), None),
    ] {
        let parsed = parse(&(port.to_owned() + &text)).map(drop);
        match expected {
            Some(expected) => {
                let error = parsed.expect_err(expected).to_string();
                assert!(error.contains(expected), "{error}");
            }
            None => parsed.expect("one file, or one dataset"),
        }
    }
}

#[test]
fn an_empty_file_says_what_is_missing() {
    let error = parse("").map(|_| ()).expect_err("nothing in it").to_string();
    assert!(error.contains("nothing to export; add [[subsystem]]"), "{error}");
    let error = parse(GOOD.split("[[port]]").next().expect("a part"))
        .map(|_| ())
        .expect_err("no subsystem");
    assert!(error.to_string().contains("nothing to export"), "{error}");
    let no_port = &GOOD[GOOD.find("[[subsystem]]").expect("there")..];
    let error = parse(no_port).map(|_| ()).expect_err("no port").to_string();
    assert!(error.contains("no port to listen on"), "{error}");
}

fn quick(files: &[&str]) -> Result<Config, ConfigError> {
    Config::quick(Quick {
        listen: vec!["127.0.0.1:4420".parse().expect("an address")],
        paths: files.iter().map(PathBuf::from).collect(),
        writable: false,
        direct_io: DirectIo::default(),
        nqn: None,
        machine: Some(Machine::with_id(Uuid::from_u128(1))),
        provider: ProviderChoice::Auto,
        cores: Cores::Count(1),
    })
}

#[test]
fn an_address_given_twice_is_one_port() {
    let listen =
        ["127.0.0.1:4420", "127.0.0.1:4421", "127.0.0.1:4420", "127.0.0.1:0", "127.0.0.1:0"];
    let config = Config::quick(Quick {
        listen: listen.map(|address| address.parse().expect("an address")).into(),
        paths: vec!["a.bin".into()],
        writable: false,
        direct_io: DirectIo::default(),
        nqn: None,
        provider: ProviderChoice::Auto,
        cores: Cores::Count(1),
        machine: Some(Machine::with_id(Uuid::from_u128(1))),
    });
    let ports: Vec<_> =
        config.expect("valid").ports.iter().map(|port| (port.id, port.address.port())).collect();
    assert_eq!(ports, [(1, 4420), (2, 4421), (3, 0), (4, 0)]);
}

#[test]
fn the_quick_form_takes_directories() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let config = quick(&["a.bin", path, "b.bin"]).expect("valid");
    let subsystem = &config.subsystems[0];
    let names: Vec<_> = subsystem.namespaces.iter().map(|one| (one.nsid.0, &*one.name)).collect();
    assert_eq!(names, [(1, "a.bin"), (2, "b.bin")]);
    let [directory] = &subsystem.directories[..] else { panic!("one directory") };
    assert_eq!((directory.path.as_path(), directory.watch), (folder.path(), true));
    let error = quick(&[path, path]).expect_err("twice").to_string();
    assert!(error.ends_with("given twice"), "{error}");
}

#[test]
fn the_quick_form_numbers_and_distinguishes_files() {
    let config = quick(&["x/a.bin", "y/a.bin", "b.bin"]).expect("valid");
    let namespaces = &config.subsystems[0].namespaces;
    let names: Vec<_> =
        namespaces.iter().map(|namespace| (namespace.nsid.0, &*namespace.name)).collect();
    assert_eq!(names, [(1, "x/a.bin"), (2, "y/a.bin"), (3, "b.bin")]);
    assert_eq!(config.subsystems[0].hosts, HostPolicy::Any);
    assert!(quick(&["a", "a"]).map(|_| ()).expect_err("twice").to_string().contains("given twice"));
    assert!(quick(&[]).map(|_| ()).expect_err("none").to_string().contains("nothing to export"));
}

#[test]
fn empty_texts_are_refused() {
    assert!(NamespaceName::try_from(String::new()).is_err());
    assert!(NamespaceName::try_from("n".repeat(1025)).is_err());
    assert!(ContentId::try_from(String::new()).is_err());
}

#[test]
fn sizes_have_units() {
    for (text, bytes) in [
        ("4096", Some(4096)),
        ("64MiB", Some(64 << 20)),
        ("1 GiB", Some(1 << 30)),
        ("512B", Some(512)),
        ("64M", Some(64 << 20)),
        ("64m", Some(64 << 20)),
        ("64Ki", Some(64 << 10)),
        ("64MB", None),
        ("64x", None),
        ("1.5MiB", None),
        ("MiB", None),
        ("-1", None),
        ("99999999999TiB", None),
    ] {
        assert_eq!(parse_bytes(text), bytes, "{text}");
    }
    for (bytes, text) in
        [(0, "0"), (1000, "1000"), (4096, "4KiB"), (3 << 20, "3MiB"), (1 << 40, "1TiB")]
    {
        assert_eq!((show_bytes(bytes).as_str(), parse_bytes(text)), (text, Some(bytes)));
    }
}

proptest! {
    /// Any content of the file leads to a configuration or to a one-line error.
    #[test]
    fn damaged_files_are_refused_in_one_line(at in 0_usize..1200, junk in r"(\\[nrt0]|\PC){0,6}", cut in 0_usize..40) {
        let mut text = GOOD.to_owned();
        let from = text.floor_char_boundary(at);
        let to = text.floor_char_boundary(from + cut);
        text.replace_range(from..to, &junk);
        if let Err(error) = parse(&text) {
            let line = error.to_string();
            prop_assert!(!line.contains('\n') && line.starts_with("/etc/feedrail.toml:"), "{}", line);
        }
    }
}

#[test]
fn a_path_in_dev_is_a_block_device() {
    let medium = |path: &str, kind: &str| {
        let text = format!(
            "[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:d\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\npath = \"{path}\"\n{kind}"
        );
        let config = parse(&text).expect("valid");
        config.subsystems[0].namespaces[0].medium.clone()
    };
    // The device may appear later.
    for (path, kind, is_block) in [
        ("/dev/feedrail-none", "", true),
        ("/dev/feedrail-none", "kind = \"file\"", false),
        ("/data/feedrail-none", "", false),
        ("/data/feedrail-none", "kind = \"block\"", true),
        ("/dev/shm/feedrail-none", "", false),
        ("/dev/null", "", false),
    ] {
        let medium = medium(path, kind);
        assert_eq!(matches!(medium, Medium::Block { .. }), is_block, "{path} {kind}: {medium:?}");
    }
}
