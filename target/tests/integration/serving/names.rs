//! Names of hosts. `spdk_nvme_perf` sends an empty HOSTNQN unless it is given one.

use std::io::Write;
use std::sync::mpsc::{Sender, channel};

use feedrail_target::Config;
use nvme_proto::fabrics::ConnectParameter;
use nvme_proto::{Cntlid, Cqe, FromBytes, FromZeros, HostId, NqnField, Status};

use super::host::Link;
use super::pattern;
use super::world::{NQN, World, config, two_namespaces};

/// A subsystem for the second host of a world only.
fn listed() -> Config {
    config(&format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\nallowed_hosts = [\"nqn.2026-01.io.feedrail:host1\"]\n\
         [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = \"1MiB\"\nread_only = false\n"
    ))
}

fn nameless(world: &mut World) -> usize {
    let host = world.add_host();
    world.names[host] = NqnField::new_zeroed();
    host
}

struct Lines(Sender<Vec<u8>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Response to a Connect of an admin queue, and the log of the target up to it.
fn refused(world: &mut World, host: usize) -> (Cqe, String) {
    let (sender, lines) = channel();
    let writer = move || Lines(sender.clone());
    let subscriber = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).finish();
    let cqe = tracing::subscriber::with_default(subscriber, || {
        let (on, link) = world.link(host, 0, 32);
        assert_eq!(link, Link::Up(32));
        world.nvme_connect(on, Cntlid::DYNAMIC, 32)
    });
    assert!(world.target.associations().controllers().is_empty(), "{cqe:?}");
    (cqe, String::from_utf8(lines.try_iter().flatten().collect()).unwrap())
}

fn assert_logged(log: &str, parts: &[&str]) {
    let lines: Vec<_> = log.lines().filter(|line| line.contains("connect refused")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    for part in parts {
        assert!(lines[0].contains(part), "{part}: {log}");
    }
}

#[test]
fn a_nameless_host_is_served_where_any_host_is() {
    let mut world = World::new(&two_namespaces());
    let host = nameless(&mut world);
    let admin = world.admin(host);
    let on = world.io(admin, 1, 32);
    let bytes = pattern(65_536, 3);
    world.write(on, 1, 8, &bytes);
    assert!(world.read(on, 1, 8, 65_536) == bytes);
}

#[test]
fn a_nameless_host_is_refused_by_a_list() {
    let mut world = World::new(&listed());
    let stranger = nameless(&mut world);
    let (cqe, log) = refused(&mut world, stranger);
    assert_eq!(cqe.status(), Status::CONNECT_INVALID_HOST.with_dnr());
    let hostid = format!("{:?}", world.ids[stranger]);
    assert_logged(&log, &["10.0.1.1", "host=\"\"", &hostid, NQN, "Connect Invalid Host"]);
    // A listed host connects as well.
    let friend = world.add_host();
    let admin = world.admin(friend);
    let on = world.io(admin, 1, 32);
    assert_eq!(world.read(on, 1, 0, 512), [0; 512]);
}

#[test]
fn a_host_without_an_identifier_is_refused() {
    for named in [true, false] {
        let mut world = World::new(&two_namespaces());
        let host = if named { world.add_host() } else { nameless(&mut world) };
        world.ids[host] = HostId::ZERO;
        let (cqe, log) = refused(&mut world, host);
        assert_eq!(cqe.status(), Status::CONNECT_INVALID_PARAMETERS.with_dnr());
        assert_eq!(cqe.dw0.get(), ConnectParameter::HOSTID.to_dw0());
        assert_logged(&log, &["10.0.1.1", "Connect Invalid Parameters", "HOSTID"]);
    }
}

#[test]
fn a_host_with_an_invalid_name_is_refused() {
    let mut control = [0; 256];
    control[..4].copy_from_slice(b"a\nb\0");
    let mut not_utf8 = [0; 256];
    not_utf8[0] = 0xFF;
    // No NUL in it; a control character, which would add a line to the log; bytes that are not
    // UTF-8.
    for name in [[b'x'; 256], control, not_utf8] {
        let mut world = World::new(&two_namespaces());
        let host = world.add_host();
        world.names[host] = NqnField::read_from_bytes(&name).unwrap();
        let (cqe, log) = refused(&mut world, host);
        assert_eq!(cqe.status(), Status::CONNECT_INVALID_PARAMETERS.with_dnr());
        assert_eq!(cqe.dw0.get(), ConnectParameter::HOSTNQN.to_dw0());
        assert_logged(&log, &["10.0.1.1", "Connect Invalid Parameters", "HOSTNQN"]);
    }
}
