//! Sources of mounts: all namespaces of a subsystem, or the shards of a manifest.

use std::collections::BTreeMap;
use std::sync::Arc;

use feedrail_dataset::manifest::{Manifest, ShardEntry, TargetIndex};
use feedrail_dataset::placement::Placement;
use feedrail_initiator::{
    Controller, ControllerOptions, Error, Host, NamespaceInfo, Pending, SubsystemAddress,
};

use crate::file::{FileReplica, FileVersion, Identity};
use crate::tree::NamedFile;

/// Namespaces to mount, and where they are.
#[derive(Clone, Debug)]
pub struct MountSource {
    /// Name in tables of mounts.
    pub(crate) name: String,
    pub(crate) targets: Vec<SourceTarget>,
    pub(crate) content: SourceContent,
}

/// A subsystem at an address.
#[derive(Clone, Debug)]
pub struct SourceTarget {
    /// Address and name of the subsystem.
    pub address: SubsystemAddress,
    /// The URL (`nvmf://HOST[:PORT]/NQN`), for people.
    pub url: String,
    /// Options of connections to it; those of the host if `None`.
    pub options: Option<ControllerOptions>,
}

impl SourceTarget {
    pub(crate) fn connect(&self, host: &Host) -> Pending<Result<Controller, Error>> {
        match &self.options {
            Some(options) => host.connect_with(self.address, options.clone()),
            None => host.connect(self.address),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum SourceContent {
    /// The namespaces of the only target.
    Namespaces,
    /// The shards of a manifest, whose targets are those of the source.
    Shards(Arc<Manifest>),
}

impl MountSource {
    /// All namespaces of a subsystem.
    pub fn subsystem(target: SourceTarget) -> Self {
        let name = target.url.clone();
        Self { name, targets: vec![target], content: SourceContent::Namespaces }
    }

    /// The shards of a manifest. `targets` are those of the manifest, in its order.
    pub fn manifest(manifest: Arc<Manifest>, targets: Vec<SourceTarget>) -> Self {
        let name = targets.first().map_or("feedrail", |target| &target.url).to_owned();
        Self { name, targets, content: SourceContent::Shards(manifest) }
    }

    /// Sets the name in tables of mounts (`/proc/mounts`, `df`), which is otherwise the URL
    /// of the first target: `mount -a` knows by it what is mounted.
    #[must_use]
    pub fn named(self, name: String) -> Self {
        Self { name, ..self }
    }
}

/// Which namespaces the targets have, as they told last, and the files that they make.
pub(crate) struct Catalog {
    content: SourceContent,
    placement: Option<Placement>,
    /// Namespaces of each target; `None` before it was connected first.
    listed: Vec<Option<Vec<NamespaceInfo>>>,
    /// Identities that the replicas of shards were found with first, by shard and target.
    known: BTreeMap<(usize, usize), Identity>,
}

impl Catalog {
    pub(crate) fn new(source: &MountSource) -> Self {
        let placement = match &source.content {
            SourceContent::Namespaces => None,
            SourceContent::Shards(manifest) => Some(Placement::new(manifest)),
        };
        Self {
            content: source.content.clone(),
            placement,
            listed: source.targets.iter().map(|_| None).collect(),
            known: BTreeMap::new(),
        }
    }

    /// Notes the namespaces that a target has.
    pub(crate) fn list(&mut self, target: usize, namespaces: Vec<NamespaceInfo>) {
        if let Some(listed) = self.listed.get_mut(target) {
            *listed = Some(namespaces);
        }
    }

    /// The files that the namespaces make now.
    pub(crate) fn files(&mut self) -> Vec<NamedFile> {
        match &self.content {
            SourceContent::Namespaces => self.namespaces(),
            SourceContent::Shards(manifest) => self.shards(&Arc::clone(manifest)),
        }
    }

    fn namespaces(&self) -> Vec<NamedFile> {
        let listed = self.listed.iter().enumerate();
        let infos = listed
            .flat_map(|(target, infos)| infos.iter().flatten().map(move |info| (target, info)));
        let file = |(target, info): (usize, &NamespaceInfo)| NamedFile {
            name: info.name.clone(),
            number: info.nsid.0,
            version: Arc::new(FileVersion::of_namespace(target, info)),
        };
        infos.map(file).collect()
    }

    fn shards(&mut self, manifest: &Manifest) -> Vec<NamedFile> {
        let by_name: Vec<BTreeMap<&str, Vec<&NamespaceInfo>>> =
            self.listed.iter().map(|infos| by_name(infos.as_deref().unwrap_or(&[]))).collect();
        let (placement, known) = (self.placement.as_ref(), &mut self.known);
        let mut files = Vec::with_capacity(manifest.shards().len());
        for (number, shard) in manifest.shards().iter().enumerate() {
            // A manifest has fewer than 2^32 shards.
            let index = number as u32;
            let ranked = placement.map_or(&shard.replicas[..], |it| it.ranked(index));
            let replica = |target: &TargetIndex| {
                let target = target.0 as usize;
                let infos = by_name.get(target)?.get(shard.name.as_str())?;
                let info = infos.iter().find(|info| is_of(shard, info))?;
                let identity = Identity::of(info);
                let first = known.entry((number, target)).or_insert_with(|| identity.clone());
                let is_unchanged = *first == identity;
                is_unchanged.then_some(FileReplica { target, nsid: info.nsid, identity })
            };
            let version = FileVersion {
                size_bytes: shard.bytes,
                uuid: shard.uuid.map(|uuid| *uuid.as_bytes()),
                generation: shard.generation.map(|generation| generation.0),
                replicas: ranked.iter().filter_map(replica).collect(),
            };
            let name = Some(shard.name.as_str().to_owned());
            files.push(NamedFile { name, number: index, version: Arc::new(version) });
        }
        files
    }

    /// The shards that no target has, by name.
    pub(crate) fn missing(&mut self) -> Vec<String> {
        let files = self.files();
        let missing = files.into_iter().filter(|file| file.version.replicas.is_empty());
        missing.filter_map(|file| file.name).collect()
    }
}

fn by_name(infos: &[NamespaceInfo]) -> BTreeMap<&str, Vec<&NamespaceInfo>> {
    let mut by_name: BTreeMap<&str, Vec<&NamespaceInfo>> = BTreeMap::new();
    for info in infos {
        if let Some(name) = &info.name {
            by_name.entry(name).or_default().push(info);
        }
    }
    by_name
}

/// Whether a namespace is what a manifest says of a shard. Generations are numbers of each target's
/// own, unless the manifest says that they are one.
fn is_of(shard: &ShardEntry<TargetIndex>, info: &NamespaceInfo) -> bool {
    let has_uuid = shard.uuid.is_none_or(|uuid| info.uuid == Some(*uuid.as_bytes()));
    let generation = shard.generation.map(|generation| generation.0);
    let has_generation = generation.is_none_or(|one| info.generation.is_none_or(|it| it == one));
    info.size_bytes == shard.bytes && has_uuid && has_generation
}
