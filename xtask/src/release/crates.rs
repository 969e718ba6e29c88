//! Crates that the programs consist of, as cargo resolves them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::architecture::Architecture;
use crate::output;

/// Crates whose dependencies are listed.
const ROOTS: [&str; 3] = ["feedrail-cli", "feedrail-target", "feedrail-python"];

/// Crate that is compiled into a program or the Python module.
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: String,
    licence: String,
    /// Registry of the crate; `None` for crates of this workspace.
    source: Option<String>,
    manifest: String,
    /// Direct dependencies, as indexes into the list of crates.
    calls: Vec<usize>,
}

/// Returns the crates sorted by name, without those that only tests and build scripts use.
pub(crate) fn shipped() -> Result<Vec<Crate>> {
    let triple = Architecture::X86_64.triple();
    let roots = ROOTS.map(|name| ["--package", name]).concat();
    // `cargo metadata` lists what any feature needs, `cargo tree` what is compiled.
    let tree = ["tree", "--locked", "--prefix=none", "--format={p}", "--target", &triple];
    let edges = ["--edges", "normal,no-proc-macro"];
    let tree = output("cargo", &[&tree[..], &edges, &roots].concat())?;
    let metadata = ["metadata", "--format-version=1", "--locked", "--filter-platform", &triple];
    Ok(parse(&serde_json::from_str(&output("cargo", &metadata)?)?, &tree))
}

/// Returns the metadata of the crates in a tree, which has a line `NAME vVERSION ...` for each.
fn parse(metadata: &Value, tree: &str) -> Vec<Crate> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let words = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    let compiled: BTreeSet<_> = tree.lines().filter_map(words).collect();
    let mut packages = list(metadata, "packages");
    let identity = |package: &Value| (text(&package["name"]), text(&package["version"]));
    packages.retain(|package| compiled.contains(&identity(package)));
    packages.sort_by_key(identity);
    let places: BTreeMap<_, _> =
        packages.iter().enumerate().map(|(place, package)| (text(&package["id"]), place)).collect();
    let is_called = |dependency: &Value| {
        list(dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null())
    };
    let calls = |node: &Value| {
        let dependencies = list(node, "deps");
        let called = dependencies.iter().filter(|dependency| is_called(dependency));
        let called = called.filter_map(|called| places.get(&text(&called["pkg"])).copied());
        (text(&node["id"]), called.collect())
    };
    let mut calls: BTreeMap<String, Vec<usize>> =
        list(&metadata["resolve"], "nodes").iter().map(calls).collect();
    let described = packages.iter().map(|package| Crate {
        name: text(&package["name"]),
        version: text(&package["version"]),
        licence: text(&package["license"]),
        source: package["source"].as_str().map(str::to_owned),
        manifest: text(&package["manifest_path"]),
        calls: calls.remove(&text(&package["id"])).unwrap_or_default(),
    });
    described.collect()
}

impl Crate {
    /// Package URL (purl), which identifies the crate in bills of materials.
    fn url(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

/// Returns the bill of materials in CycloneDX 1.5.
pub(crate) fn bill(crates: &[Crate], version: &str) -> Result<String> {
    let component = |package: &Crate| {
        // Old manifests separate alternative licences by a slash.
        let licence = package.licence.replace('/', " OR ");
        json!({
            "type": "library", "bom-ref": package.url(), "purl": package.url(),
            "name": package.name, "version": package.version,
            "licenses": [{"expression": licence}],
        })
    };
    let depends = |package: &Crate| {
        let on: BTreeSet<_> = package.calls.iter().map(|&place| crates[place].url()).collect();
        json!({"ref": package.url(), "dependsOn": on})
    };
    let bill = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {
            "type": "application", "name": "feedrail", "version": version,
            "bom-ref": format!("pkg:generic/feedrail@{version}"),
            "licenses": [{"expression": "Apache-2.0 OR MIT"}],
        }},
        "components": crates.iter().map(component).collect::<Vec<_>>(),
        "dependencies": crates.iter().map(depends).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

/// Returns names and texts of the licences of all third-party crates.
pub(crate) fn licences(crates: &[Crate]) -> Result<String> {
    let mut text =
        "The programs contain these works of others, each under its licence.\n".to_owned();
    for package in crates.iter().filter(|package| package.source.is_some()) {
        writeln!(text, "\n=== {} {}: {}\n", package.name, package.version, package.licence)?;
        let folder =
            Path::new(&package.manifest).parent().context("a manifest without a folder")?;
        for path in licence_files(folder)? {
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            text += String::from_utf8_lossy(&bytes).trim_end();
            text += "\n\n";
        }
    }
    Ok(text)
}

fn licence_files(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"]
            .iter()
            .any(|begin| name.starts_with(begin));
        if is_licence && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate has `not-compiled` for a feature of another program.
    fn metadata() -> Value {
        let package = |name: &str, source: Option<&str>| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0",
                "source": source, "manifest_path": "/nowhere/Cargo.toml"})
        };
        let calls =
            |name: &str, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        json!({
            "packages": [
                package("feedrail-cli", None), package("used", Some("registry")),
                package("below", Some("registry")), package("tester", Some("registry")),
                package("not-compiled", Some("registry")),
            ],
            "resolve": {"nodes": [
                {"id": "feedrail-cli", "deps": [calls("used", None), calls("tester", Some("dev"))]},
                {"id": "used", "deps": [calls("below", None), calls("not-compiled", None)]},
                {"id": "below", "deps": []},
                {"id": "tester", "deps": []},
                {"id": "not-compiled", "deps": []},
            ]},
        })
    }

    const TREE: &str =
        "feedrail-cli v1.0.0 (/nowhere)\nused v1.0.0\nbelow v1.0.0\nused v1.0.0 (*)\n";

    #[test]
    fn what_is_shipped_is_what_is_compiled() {
        let crates = parse(&metadata(), TREE);
        let names: Vec<_> = crates.iter().map(|package| &*package.name).collect();
        assert_eq!(names, ["below", "feedrail-cli", "used"]);
    }

    #[test]
    fn the_bill_names_each_crate_and_what_it_depends_on() {
        let bill = bill(&parse(&metadata(), TREE), "1.0.0").unwrap();
        let bill: Value = serde_json::from_str(&bill).unwrap();
        assert_eq!(bill["components"].as_array().unwrap().len(), 3);
        assert_eq!(bill["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["dependencies"][2]["ref"], "pkg:cargo/used@1.0.0");
        assert_eq!(bill["dependencies"][2]["dependsOn"], json!(["pkg:cargo/below@1.0.0"]));
    }
}
