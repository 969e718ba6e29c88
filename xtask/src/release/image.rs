//! Container image as an OCI archive (image-spec 1.1): Debian's C library and rdma-core in one
//! layer, the programs in another. Building it needs no daemon and no privileges.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::architecture::Architecture;
use super::archive::{Archive, compress};
use super::programs;
use crate::lab::guest::run_fetching;
use crate::root;

/// Unprivileged user that the target runs as.
const USER: u64 = 999;
const STATE: &str = "/var/lib/feedrail";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Version and time of an image, which all its architectures share.
pub(crate) struct Image<'a> {
    pub(crate) version: &'a str,
    /// Time of creation in seconds since 1970.
    pub(crate) seconds: u64,
}

impl Image<'_> {
    /// Builds the archive. Each architecture comes with the folder of its programs.
    pub(crate) fn archive(&self, built: &[(Architecture, &Path)]) -> Result<Archive> {
        let mut layout = Layout { archive: Archive::new(self.seconds) };
        let mut manifests = Vec::new();
        for (architecture, programs) in built {
            let layers = [libraries(*architecture, self.seconds)?, self.programs(programs)?];
            let mut manifest = self.manifest(&mut layout, *architecture, &layers)?;
            manifest["platform"] = json!({"architecture": architecture.debian(), "os": "linux"});
            manifests.push(manifest);
        }
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
        let mut whole = layout.add_json(INDEX, &index)?;
        let name = json!({"org.opencontainers.image.ref.name": self.version});
        whole["annotations"] = name;
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [whole]});
        layout.archive.file("index.json", 0o644, serde_json::to_vec(&index)?);
        layout.archive.file("oci-layout", 0o644, r#"{"imageLayoutVersion":"1.0.0"}"#);
        Ok(layout.archive)
    }

    /// Adds the image of one architecture, and returns the descriptor of its manifest.
    fn manifest(
        &self,
        layout: &mut Layout,
        architecture: Architecture,
        layers: &[Vec<u8>],
    ) -> Result<Value> {
        let compressed = layers.iter().map(|tar| layout.add(LAYER, compress(tar)?));
        let descriptors = compressed.collect::<Result<Vec<_>>>()?;
        let config = json!({
            "architecture": architecture.debian(), "os": "linux",
            "config": {
                "User": "feedrail",
                "Entrypoint": ["/usr/bin/feedrail-target"],
                "Volumes": {STATE: {}},
                "WorkingDir": "/",
                "Env": ["PATH=/usr/bin:/bin"],
                "Labels": {
                    "org.opencontainers.image.title": "feedrail-target",
                    "org.opencontainers.image.version": self.version,
                    "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
                },
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": layers.iter().map(|tar| digest(tar)).collect::<Vec<_>>(),
            },
        });
        let config = layout.add_json(CONFIG, &config)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": descriptors,
        });
        layout.add_json(MANIFEST, &manifest)
    }

    /// Builds the layer with the programs and their user.
    fn programs(&self, folder: &Path) -> Result<Vec<u8>> {
        let mut layer = Archive::new(self.seconds);
        for program in programs::NAMES {
            let path = folder.join(program);
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            layer.file(&format!("usr/bin/{program}"), 0o755, bytes);
        }
        let passwd = format!(
            "root:x:0:0:root:/root:/usr/sbin/nologin\n\
             feedrail:x:{USER}:{USER}::{STATE}:/usr/sbin/nologin\n"
        );
        layer.file("etc/passwd", 0o644, passwd);
        layer.file("etc/group", 0o644, format!("root:x:0:\nfeedrail:x:{USER}:\n"));
        layer.folder(STATE.trim_start_matches('/'), 0o750, USER);
        layer.folder("tmp", 0o1777, 0);
        layer.to_tar()
    }
}

/// Archive to which the blobs of an image are added.
struct Layout {
    archive: Archive,
}

impl Layout {
    /// Adds a blob, and returns its descriptor.
    fn add(&mut self, media_type: &str, bytes: Vec<u8>) -> Result<Value> {
        let (digest, size) = (digest(&bytes), bytes.len());
        self.archive.file(&format!("blobs/{}", digest.replace(':', "/")), 0o644, bytes);
        Ok(json!({"mediaType": media_type, "digest": digest, "size": size}))
    }

    fn add_json(&mut self, media_type: &str, value: &Value) -> Result<Value> {
        self.add(media_type, serde_json::to_vec(value)?)
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

/// Returns the SHA-256 of bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Builds the layer with the libraries, which are unpacked Debian packages.
fn libraries(architecture: Architecture, seconds: u64) -> Result<Vec<u8>> {
    let path = root().join(format!("out/tools/image-{}.tar", architecture.name()));
    let script = root().join("xtask/release/image-libraries.sh");
    let [script, output] = [&script, &path].map(|path| path.display().to_string());
    run_fetching(&[&script, architecture.debian(), &output, &seconds.to_string()])?;
    fs::read(&path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_has_the_name_of_its_digest() {
        let mut layout = Layout { archive: Archive::new(0) };
        let descriptor = layout.add("text/plain", b"abc".to_vec()).unwrap();
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(descriptor["digest"], format!("sha256:{digest}"));
        assert_eq!(descriptor["size"], 3);
        let tar = layout.archive.to_tar().unwrap();
        let mut archive = tar::Archive::new(&*tar);
        let entry = archive.entries().unwrap().next().unwrap().unwrap();
        assert_eq!(entry.path().unwrap().to_string_lossy(), format!("blobs/sha256/{digest}"));
    }
}
