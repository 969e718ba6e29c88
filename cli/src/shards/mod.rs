//! Shards named on a command line: files and folders, or namespaces of targets.

mod arrange;
mod local;
mod reader;
mod remote;

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use feedrail_dataset::Name;
use feedrail_dataset::formats::ReadAt;
use feedrail_dataset::index::IndexShard;
use feedrail_dataset::manifest::Generation;
use feedrail_dataset::url::{self, SourceUrl};
use feedrail_initiator::Namespace;
use uuid::Uuid;

use self::reader::WatchedShard;
pub(crate) use self::remote::{SubsystemUrl, Subsystems, address};
use crate::interrupt::Interrupt;
use crate::options::Local;

/// Argument of `index` and `manifest` that names shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShardArg {
    /// A file, or a folder of files.
    Path(PathBuf),
    /// A namespace of a running target, or all namespaces of a subsystem.
    Url(Box<SourceUrl>),
}

/// Shard, with the index file that Megatron's format has.
pub(crate) struct ListedShard {
    pub(crate) name: Name,
    pub(crate) bytes: u64,
    pub(crate) place: ShardLocation,
    /// `.idx` of Megatron's format, with the same stem as the `.bin`.
    pub(crate) idx: Option<ShardLocation>,
}

impl ListedShard {
    pub(crate) fn described(&self) -> IndexShard {
        let known = IndexShard::new(self.name.clone(), self.bytes);
        match &self.place {
            ShardLocation::File(_) => known,
            ShardLocation::Namespace { namespace, .. } => {
                let info = namespace.info();
                let (uuid, generation) = (info.uuid, info.generation);
                IndexShard {
                    generation: generation.map(Generation),
                    uuid: uuid.map(Uuid::from_bytes),
                    ..known
                }
            }
        }
    }
}

#[derive(Clone)]
pub(crate) enum ShardLocation {
    /// Opened only while it is read, since there may be more shards than file descriptors.
    File(PathBuf),
    Namespace {
        namespace: Namespace,
        subsystem: Arc<SubsystemUrl>,
    },
}

/// Access pattern of a pass over a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadPattern {
    /// Only the parts that contain positions of samples.
    Parts,
    /// All bytes, more or less in order.
    Whole,
}

impl FromStr for ShardArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("nvmf://") {
            return parse_url(text).map(|url| Self::Url(Box::new(url)));
        }
        text.parse().map(Self::Path).map_err(|never: Infallible| match never {})
    }
}

fn parse_url(text: &str) -> Result<SourceUrl, String> {
    text.parse().map_err(|error: url::Error| error.to_string())
}

/// Returns the shards in the order of the arguments; those of a folder or a subsystem by name.
///
/// # Errors
/// A file or a namespace does not exist or cannot be read, a target cannot be reached, or no shards
/// were found.
pub(crate) fn list(
    arguments: &[ShardArg],
    subsystems: &mut Subsystems,
    local: &Local,
) -> Result<Vec<ListedShard>> {
    let mut shards = Vec::new();
    for argument in arguments {
        shards.extend(match argument {
            ShardArg::Path(path) => {
                local::shards(path).with_context(|| format!("cannot read {}", path.display()))?
            }
            ShardArg::Url(url) => subsystems.shards(url, local).with_context(|| url.to_string())?,
        });
    }
    ensure!(!shards.is_empty(), "there are no shards");
    ensure!(u32::try_from(shards.len()).is_ok(), "an index has room for 2^32 - 1 shards");
    Ok(shards)
}

impl ShardLocation {
    fn open(&self, pattern: ReadPattern) -> Result<Box<dyn ReadAt>> {
        reader::open(self, pattern)
    }

    /// Opens the shard for reads that fail after a signal.
    pub(crate) fn watch(
        &self,
        pattern: ReadPattern,
        interrupt: &Interrupt,
    ) -> Result<Box<dyn ReadAt>> {
        Ok(Box::new(WatchedShard::new(self.open(pattern)?, interrupt.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_a_url_by_its_scheme() {
        let url = "nvmf://192.0.2.1/nqn.2026-01.org.example:a/train.bin".parse().unwrap();
        assert!(matches!(url, ShardArg::Url(_)));
        let path = "./nvmf:/train.bin".parse();
        assert_eq!(path, Ok(ShardArg::Path("./nvmf:/train.bin".into())));
        assert!("nvmf://192.0.2.1".parse::<ShardArg>().unwrap_err().contains("NQN"));
    }
}
