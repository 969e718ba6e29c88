//! Loads that each target is measured under.

use crate::cores::{HOST_CORE, TARGET_CORE};

/// Medium of a namespace in the bench's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediumKind {
    Null,
    Memory,
    File,
    /// File that is only read, and fits into the page cache.
    HotFile,
}

/// RDMA provider that connects target and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchProvider {
    Soft,
    Shm,
}

/// Access pattern, size and concurrency of the commands that a load sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) pattern: &'static str,
    pub(crate) block_bytes: u32,
    pub(crate) depth: u32,
    pub(crate) connections: u16,
    pub(crate) queues: u16,
    /// Number of threads, each with a host of its own and `depth` commands in flight.
    pub(crate) threads: u16,
    /// Side that shares its core with a thread that only computes.
    pub(crate) beside: Option<BenchSide>,
}

/// Side of an NVMe-oF connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchSide {
    Target,
    Host,
}

impl MediumKind {
    /// Media on which every load of `Load::ALL` is measured.
    pub(crate) const ALL: [Self; 3] = [Self::Null, Self::Memory, Self::File];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Memory => "memory",
            Self::File => "file",
            Self::HotFile => "hot-file",
        }
    }

    /// Namespace identifier of the medium in the bench's target.
    pub(crate) fn nsid(self) -> u32 {
        match self {
            Self::Null => 1,
            Self::Memory => 2,
            Self::File => 3,
            Self::HotFile => 4,
        }
    }
}

impl BenchProvider {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Shm => "shm",
        }
    }

    /// Section in the names of the provider's figures.
    pub(crate) fn section(self) -> &'static str {
        match self {
            Self::Soft => "us",
            Self::Shm => "shm",
        }
    }
}

impl BenchSide {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Host => "host",
        }
    }

    pub(crate) fn core(self) -> usize {
        match self {
            Self::Target => TARGET_CORE,
            Self::Host => HOST_CORE,
        }
    }
}

impl Load {
    /// Creates a load of one thread, and one connection with one queue.
    pub(crate) const fn new(pattern: &'static str, block_bytes: u32, depth: u32) -> Self {
        Self { pattern, block_bytes, depth, connections: 1, queues: 1, threads: 1, beside: None }
    }

    /// Load on the file in the page cache.
    pub(crate) const HOT: Self = Self::new("randread", 4 << 10, 32);

    /// Loads that are measured on every medium.
    pub(crate) const ALL: [Self; 9] = [
        Self::new("randread", 4 << 10, 1),
        Self::new("randread", 4 << 10, 32),
        Self::new("randread", 4 << 10, 128),
        Self::new("randwrite", 4 << 10, 32),
        Self::new("randread", 16 << 10, 32),
        Self::new("randread", 128 << 10, 8),
        Self::new("randread", 128 << 10, 32),
        Self::new("read", 1 << 20, 8),
        Self::new("write", 1 << 20, 8),
    ];

    /// 4 KiB random reads with 256 in flight, over an increasing number of connections.
    pub(crate) const CONNECTIONS: [Self; 4] = {
        const fn over(connections: u16) -> Load {
            Load { connections, ..Load::new("randread", 4 << 10, 256) }
        }
        [over(1), over(16), over(64), over(256)]
    };

    /// 4 KiB random reads over several queues of one connection.
    pub(crate) const QUEUES: [Self; 2] = {
        const fn over(queues: u16) -> Load {
            Load { queues, ..Load::new("randread", 4 << 10, 128) }
        }
        [over(2), over(4)]
    };

    /// 4 KiB random reads by an increasing number of hosts, which share a core.
    pub(crate) const THREADS: [Self; 3] = {
        const fn of(threads: u16) -> Load {
            Load { threads, ..Load::new("randread", 4 << 10, 4) }
        }
        [of(1), of(4), of(16)]
    };

    /// Loads while a computing thread shares the core of the target or of the host.
    pub(crate) const BESIDE: [Self; 4] = {
        const fn beside(side: BenchSide, depth: u32) -> Load {
            Load { beside: Some(side), ..Load::new("randread", 4 << 10, depth) }
        }
        [
            beside(BenchSide::Target, 1),
            beside(BenchSide::Target, 32),
            beside(BenchSide::Host, 1),
            beside(BenchSide::Host, 32),
        ]
    };

    /// Loads that are measured only on the null medium.
    pub(crate) fn of_null() -> impl Iterator<Item = Self> {
        Self::CONNECTIONS.into_iter().chain(Self::QUEUES).chain(Self::THREADS).chain(Self::BESIDE)
    }

    /// Loads of every medium, then those of the null medium only.
    pub(crate) fn every() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain(Self::of_null())
    }

    /// Copies the load with one thread, one connection and one queue, without a computing thread.
    pub(crate) fn alone(&self) -> Self {
        Self::new(self.pattern, self.block_bytes, self.depth)
    }

    /// Names and numbers of connections, queues and threads, where there are several.
    fn several(&self) -> impl Iterator<Item = (&'static str, u16)> {
        let counts =
            [("connections", self.connections), ("queues", self.queues), ("threads", self.threads)];
        counts.into_iter().filter(|&(_, count)| count > 1)
    }

    /// Name of the load within the name of a figure.
    pub(crate) fn name(&self) -> String {
        let mut name = format!("{}-{}k-{}", self.pattern, self.block_bytes >> 10, self.depth);
        if *self == Self::CONNECTIONS[0] {
            name += "-connections-1";
        }
        for (what, count) in self.several() {
            name += &format!("-{what}-{count}");
        }
        if let Some(side) = self.beside {
            name += &format!("-computing-{}", side.name());
        }
        name
    }

    /// Description of the load for tables.
    pub(crate) fn words(&self) -> String {
        let (pattern, kind) = match self.pattern.strip_prefix("rand") {
            Some(kind) => ("random", kind),
            None => ("sequential", self.pattern),
        };
        let size = match self.block_bytes >> 20 {
            0 => format!("{} KiB", self.block_bytes >> 10),
            mebibytes => format!("{mebibytes} MiB"),
        };
        let mut words = format!("{size} {pattern} {kind}, depth {}", self.depth);
        for (what, count) in self.several() {
            words += &format!(", {count} {what}");
        }
        if let Some(side) = self.beside {
            words += &format!(", one computes beside the {}", side.name());
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ() {
        let all: Vec<Load> = Load::every().collect();
        let mut names: Vec<String> = all.iter().map(Load::name).collect();
        assert_eq!(names[0], "randread-4k-1");
        assert_eq!(Load::CONNECTIONS[0].name(), "randread-4k-256-connections-1");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn each_is_measured_alone_as_well() {
        let all: Vec<Load> = Load::every().collect();
        assert!(all.iter().all(|load| all.contains(&load.alone())));
    }

    #[test]
    fn words_for_people() {
        assert_eq!(Load::ALL[0].words(), "4 KiB random read, depth 1");
        assert_eq!(Load::ALL[8].words(), "1 MiB sequential write, depth 8");
    }
}
