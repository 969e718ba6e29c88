//! A device gives back every file descriptor. The test is alone in its process, so that no other
//! test's descriptors count.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use rdma::soft::{PortChoice, SoftDevice, SoftOptions};
use rdma::{Device, GroupConfig};
use rusty_fork::rusty_fork_test;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("proc").count()
}

rusty_fork_test! {
    #[test]
    fn no_descriptor_is_left_behind() {
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = IpAddr::from(Ipv4Addr::new(127, high | 1, low, 77));
        let before = descriptors();
        for port in [PortChoice::Roce, PortChoice::Any, PortChoice::Ephemeral] {
            let mut options = SoftOptions::new(address, port);
            options.groups = 3;
            let device = SoftDevice::open(&options).expect("open");
            let config = GroupConfig { completions: 16, queue_pairs: 4, completion_vector: 0 };
            let group = device.group(&config).expect("group");
            let cm = device.connection_manager().expect("connection manager");
            assert!(device.connection_manager().is_err(), "there is one");
            let again = SoftDevice::open(&SoftOptions::new(address, PortChoice::Roce));
            assert!(port != PortChoice::Roce || again.is_err());
            drop(again);
            assert!(descriptors() > before);
            drop((device, group, cm));
            assert_eq!(descriptors(), before);
        }
    }
}
