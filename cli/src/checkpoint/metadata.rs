//! Metadata of a checkpoint: a JSON object of the command line, or the bytes of a file.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value};

/// Longest metadata in bytes, as the format permits.
const MOST: usize = 1 << 20;

/// A `KEY=VALUE` of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetadataPair {
    key: String,
    value: String,
}

/// Parses a pair. The value may have more equals signs.
pub(super) fn pair(text: &str) -> Result<MetadataPair, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            Ok(MetadataPair { key: key.to_owned(), value: value.to_owned() })
        }
        _ => Err("metadata is KEY=VALUE".to_owned()),
    }
}

/// Returns the bytes of a file, or of a JSON object with the pairs; none without either.
pub(super) fn bytes(pairs: &[MetadataPair], file: Option<&Path>) -> Result<Vec<u8>> {
    let bytes = match file {
        Some(path) => std::fs::read(path)
            .with_context(|| format!("cannot read the metadata in {}", path.display()))?,
        None if pairs.is_empty() => Vec::new(),
        None => {
            let mut object = Map::new();
            for MetadataPair { key, value } in pairs {
                let old = object.insert(key.clone(), Value::String(value.clone()));
                ensure!(old.is_none(), "the metadata has {key:?} twice");
            }
            Value::Object(object).to_string().into_bytes()
        }
    };
    ensure!(bytes.len() <= MOST, "the metadata has {} bytes, and {MOST} is the limit", bytes.len());
    Ok(bytes)
}

/// Returns metadata for output: JSON as it is, other text as a string, other bytes as their number.
pub(super) fn to_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok("") => Value::Null,
        Ok(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())),
        Err(_) => serde_json::json!({ "bytes": bytes.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_an_object() {
        let pairs = ["loss=0.5", "note=a=b"].map(|text| pair(text).unwrap());
        let bytes = bytes(&pairs, None).unwrap();
        assert_eq!(bytes, br#"{"loss":"0.5","note":"a=b"}"#);
        assert_eq!(to_json(&bytes)["note"], "a=b");
        assert_eq!(to_json(b"\xFF\xFE"), serde_json::json!({ "bytes": 2 }));
        pair("loss").unwrap_err();
        pair("=1").unwrap_err();
    }
}
