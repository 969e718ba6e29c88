//! `manifest.json`, with its hash and without regard to it.

use feedrail_dataset::manifest::{Manifest, ManifestFile};

use super::bounded;

/// The text of a manifest, which is read as it is and without regard to its hash. One that is
/// accepted is written as a text that means the same, and nothing in it points elsewhere.
pub fn run(data: &[u8]) {
    if let Ok(manifest) = bounded(data.len(), || Manifest::parse(data)) {
        check(&manifest);
    }
    let file = bounded(data.len(), || serde_json::from_slice::<ManifestFile>(data));
    let Ok(file) = file else { return };
    match bounded(data.len(), || Manifest::new(file)) {
        Ok(manifest) => check(&manifest),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn check(manifest: &Manifest) {
    let again = Manifest::parse(manifest.to_json().as_bytes()).expect("what was written is valid");
    assert_eq!(again, *manifest);
    assert_eq!(Manifest::new(manifest.to_file()).expect("its own parts"), *manifest);
    let targets = manifest.targets().len();
    for shard in manifest.shards() {
        assert!(shard.bytes > 0 && !shard.replicas.is_empty());
        assert!(shard.replicas.iter().all(|replica| (replica.0 as usize) < targets));
    }
    if let Some(index) = manifest.index() {
        let path = index.file.as_str();
        assert!(!path.starts_with('/') && !path.split('/').any(|name| name == ".."), "{path}");
    }
}
