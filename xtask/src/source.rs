//! Files of a checkout: their text, and the syntax of Rust files without tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use syn::punctuated::Punctuated;
use syn::{Attribute, Item, Meta, Token};

/// File of the checkout, with its path from the root.
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Rust file without its test code.
pub(crate) struct ProductFile {
    pub(crate) path: String,
    pub(crate) items: Vec<Item>,
}

/// Option that selects the checkout to examine.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Tree {
    /// Another checkout than that of this program
    #[arg(long, value_name = "FOLDER")]
    tree: Option<PathBuf>,
}

impl Tree {
    /// Returns all Rust files that git tracks.
    pub(crate) fn sources(&self) -> Result<Vec<SourceFile>> {
        self.files("*.rs")
    }

    /// Returns all Markdown files that git tracks.
    pub(crate) fn documents(&self) -> Result<Vec<SourceFile>> {
        self.files("*.md")
    }

    /// Returns all files with prose that git tracks: Rust, Markdown and Python.
    pub(crate) fn texts(&self) -> Result<Vec<SourceFile>> {
        let parts = ["*.rs", "*.md", "*.py"].map(|pattern| self.files(pattern));
        Ok(parts.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Whether the checkout has a file or a folder at this path from its root.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.root().join(path).exists()
    }

    /// Reads a file at this path from the root of the checkout.
    pub(crate) fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.root().join(path)).with_context(|| path.to_owned())
    }

    fn root(&self) -> PathBuf {
        self.tree.clone().unwrap_or_else(crate::root)
    }

    fn files(&self, pattern: &str) -> Result<Vec<SourceFile>> {
        let tree = self.root();
        let output = Command::new("git").args(["ls-files", pattern]).current_dir(&tree).output()?;
        ensure!(output.status.success(), "git ls-files failed");
        let names = String::from_utf8(output.stdout)?;
        let there = names.lines().filter(|name| tree.join(name).exists());
        let read = |name: &str| {
            let text = fs::read_to_string(tree.join(name)).with_context(|| name.to_owned())?;
            Ok(SourceFile { path: name.to_owned(), text })
        };
        there.map(read).collect()
    }
}

/// Parses the files that are not tests, and removes items that are compiled only for tests.
pub(crate) fn product(sources: &[SourceFile]) -> Result<Vec<ProductFile>> {
    let mut files = Vec::new();
    let mut tests = BTreeSet::new();
    for source in sources.iter().filter(|source| !is_test_path(&source.path)) {
        let file = syn::parse_file(&source.text).with_context(|| source.path.clone())?;
        let mut items = file.items;
        strip_tests(&mut items, &module_folder(&source.path), &mut tests);
        files.push(ProductFile { path: source.path.clone(), items });
    }
    let is_test = |path: &str| tests.iter().any(|module| is_within(path, module));
    files.retain(|file| !is_test(&file.path));
    Ok(files)
}

fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "tests.rs"))
}

/// Returns the folder that contains the files of the modules that a file declares.
pub(crate) fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    }
}

/// Whether a file belongs to `module` or a module below it. `module` is a path without `.rs`.
fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Removes items that are compiled only for tests. Modules among them that have files of their own
/// are added to `tests`.
fn strip_tests(items: &mut Vec<Item>, folder: &str, tests: &mut BTreeSet<String>) {
    items.retain_mut(|item| {
        let for_tests = attributes(item).iter().any(is_for_tests);
        if let Item::Mod(module) = item {
            let path = format!("{folder}/{}", module.ident);
            match &mut module.content {
                Some((_, inner)) => strip_tests(inner, &path, tests),
                None if for_tests => drop(tests.insert(path)),
                None => {}
            }
        }
        !for_tests
    });
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    let condition = attribute.path().is_ident("cfg").then(|| attribute.parse_args::<Meta>());
    matches!(condition, Some(Ok(condition)) if implies_test(&condition))
}

fn implies_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            let Ok(parts) = parts else { return false };
            match list.path.get_ident() {
                Some(all) if all == "all" => parts.iter().any(implies_test),
                Some(any) if any == "any" => parts.iter().all(implies_test),
                _ => false,
            }
        }
        Meta::NameValue(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn test_code_is_left_out() {
        let files = [
            source(
                "a/src/lib.rs",
                "struct A; #[cfg(test)] struct B; #[cfg(all(test, loom))] mod c; \
                 #[cfg(any(test, feature = \"f\"))] struct D; mod e { #[cfg(test)] mod f; }",
            ),
            source("a/src/c.rs", "struct C;"),
            source("a/src/c/inner.rs", "struct C;"),
            source("a/src/cc.rs", "struct C;"),
            source("a/src/e/f.rs", "struct F;"),
            source("a/src/tests.rs", "this is not parsed"),
            source("a/tests/it.rs", "this is not parsed"),
        ];
        let product = product(&files).unwrap();
        let paths: Vec<_> = product.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["a/src/lib.rs", "a/src/cc.rs"]);
        assert_eq!(product[0].items.len(), 3, "A, D and e");
    }

    #[test]
    fn modules_are_found_beside_their_declaration() {
        for (path, folder) in
            [("a/src/lib.rs", "a/src"), ("a/src/b/mod.rs", "a/src/b"), ("a/src/b.rs", "a/src/b")]
        {
            assert_eq!(module_folder(path), folder);
        }
    }
}
