//! NUMA distances between a processor and network devices.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Distance within a node (ACPI, SLIT), which is used if the distance is unknown.
const LOCAL_DISTANCE: u32 = 10;

/// NUMA nodes of a machine and of its network interfaces, from sysfs.
pub(crate) struct NumaNodes {
    nodes: PathBuf,
    interfaces: PathBuf,
}

impl NumaNodes {
    pub(crate) fn of_machine() -> Self {
        Self::at(Path::new("/sys"))
    }

    fn at(sysfs: &Path) -> Self {
        Self { nodes: sysfs.join("devices/system/node"), interfaces: sysfs.join("class/net") }
    }

    /// Returns the distance between a processor and the device that has a local address, or that
    /// within a node if sysfs does not have it.
    pub(crate) fn distance(&self, cpu: usize, source: IpAddr) -> u32 {
        let addresses = rdma::local_addresses().unwrap_or_default();
        let found = addresses.into_iter().find(|local| local.ip == source);
        let distance = found.and_then(|local| self.distance_to(cpu, &local.interface));
        distance.unwrap_or(LOCAL_DISTANCE)
    }

    fn distance_to(&self, cpu: usize, interface: &str) -> Option<u32> {
        let node = self.interfaces.join(interface).join("device/numa_node");
        // The file contains -1 if the firmware does not report the node.
        let to: u32 = fs::read_to_string(node).ok()?.trim().parse().ok()?;
        let nodes = self.list();
        let on = |node: &&u32| self.folder(**node).join(format!("cpu{cpu}")).exists();
        let from = *nodes.iter().find(on)?;
        let distances = fs::read_to_string(self.folder(from).join("distance")).ok()?;
        let place = nodes.iter().position(|node| *node == to)?;
        distances.split_whitespace().nth(place)?.parse().ok()
    }

    /// Returns the numbers of all nodes, in the order of the distances in sysfs.
    fn list(&self) -> Vec<u32> {
        let entries = fs::read_dir(&self.nodes).into_iter().flatten().flatten();
        let number =
            |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok();
        let mut nodes: Vec<u32> = entries.filter_map(number).collect();
        nodes.sort_unstable();
        nodes
    }

    fn folder(&self, node: u32) -> PathBuf {
        self.nodes.join(format!("node{node}"))
    }
}

/// Distances of paths from one processor. Each address is looked up once.
pub(crate) struct PathDistances {
    cpu: usize,
    nodes: NumaNodes,
    known: BTreeMap<IpAddr, u32>,
}

impl PathDistances {
    /// Returns the distances from the processor that the caller runs on.
    pub(crate) fn from_here() -> Self {
        let (cpu, nodes) = (rustix::thread::sched_getcpu(), NumaNodes::of_machine());
        Self { cpu, nodes, known: BTreeMap::new() }
    }

    /// Returns the distance to the device from which a target is reached, the largest if there is
    /// no such device. `source` returns the address of the device.
    pub(crate) fn to(&mut self, target: IpAddr, source: impl Fn() -> io::Result<IpAddr>) -> u32 {
        let Self { cpu, nodes, known } = self;
        let look = || source().map_or(u32::MAX, |source| nodes.distance(*cpu, source));
        *known.entry(target).or_insert_with(look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, file: &str, text: &str) {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn distances_are_those_of_sysfs() {
        let folder = tempfile::tempdir().expect("a folder");
        let sysfs = folder.path();
        // Node 1 has no memory, and is not there.
        for (node, cpu, distances) in [(0, 0, "10 21 31"), (2, 1, "21 10 12"), (10, 2, "31 12 10")]
        {
            write(sysfs, &format!("devices/system/node/node{node}/cpu{cpu}"), "");
            write(sysfs, &format!("devices/system/node/node{node}/distance"), distances);
        }
        for (interface, node) in
            [("near", "0\n"), ("far", "10\n"), ("odd", "-1\n"), ("gone", "1\n")]
        {
            write(sysfs, &format!("class/net/{interface}/device/numa_node"), node);
        }
        let nodes = NumaNodes::at(sysfs);
        assert_eq!(
            [0, 1, 2].map(|cpu| nodes.distance_to(cpu, "near")),
            [Some(10), Some(21), Some(31)]
        );
        assert_eq!(
            [0, 1, 2].map(|cpu| nodes.distance_to(cpu, "far")),
            [Some(31), Some(12), Some(10)]
        );
        for interface in ["odd", "gone", "none"] {
            assert_eq!(nodes.distance_to(0, interface), None, "{interface}");
        }
        assert_eq!(nodes.distance_to(3, "near"), None, "no node has that processor");
        assert_eq!(nodes.distance(0, [127, 0, 0, 1].into()), LOCAL_DISTANCE);
    }

    #[test]
    fn an_address_is_looked_up_once() {
        let mut distances = PathDistances::from_here();
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(distances.to(loopback, || Ok(loopback)), LOCAL_DISTANCE);
        assert_eq!(distances.to(loopback, || unreachable!("it is known")), LOCAL_DISTANCE);
        let unreachable = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(distances.to(unreachable, || Err(io::ErrorKind::NotFound.into())), u32::MAX);
    }
}
