//! Checks documents against the code and each other: their length, the items and crates that they
//! name, and their links.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use syn::{ImplItem, Item, TraitItem, Type};

use crate::source::{SourceFile, Tree};

/// Path of the page that describes the course of requests through the code.
const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Maximum number of words of that page.
const ARCHITECTURE_WORDS_MAX: usize = 900;

/// Maximum number of lines of `README.md`.
const README_LINES_MAX: usize = 150;

/// Path of the list of terms that many files use.
const GLOSSARY: &str = "docs/glossary.md";

/// Maximum number of terms in the glossary.
const GLOSSARY_TERMS_MAX: usize = 60;

/// Returns complaints about all documents of a checkout.
pub(super) fn complaints(tree: &Tree, sources: &[SourceFile]) -> Result<Vec<String>> {
    let documents = tree.documents()?;
    let index = ItemIndex::new(sources);
    let anchors: BTreeMap<_, _> =
        documents.iter().map(|document| (&*document.path, anchors(&document.text))).collect();
    let leads = |path: &str, anchor: &str| {
        let has_anchor = |known: &BTreeSet<String>| anchor.is_empty() || known.contains(anchor);
        tree.has(path) && anchors.get(path).is_none_or(has_anchor)
    };
    let mut complaints = Vec::new();
    for document in &documents {
        complaints.extend(length(&document.path, &document.text));
        complaints.extend(dead_links(document, leads));
        if names_items(&document.path) {
            complaints.extend(unknown_items(document, &index)?);
        }
    }
    complaints.extend(absent_crates(&tree.read(ARCHITECTURE)?, sources));
    Ok(complaints)
}

/// Returns the crates of the workspace that the architecture page does not name in backticks.
fn absent_crates(page: &str, sources: &[SourceFile]) -> Vec<String> {
    let known: BTreeSet<_> =
        prose(page).flat_map(|(_, line)| line.split('`').skip(1).step_by(2)).collect();
    let folder = |source: &SourceFile| {
        let path = source.path.strip_suffix("/src/lib.rs");
        path.or_else(|| source.path.strip_suffix("/src/main.rs")).map(str::to_owned)
    };
    let crates: BTreeSet<_> = sources.iter().filter_map(folder).collect();
    let absent = crates.iter().filter(|name| !known.contains(name.as_str()));
    absent.map(|name| format!("{ARCHITECTURE}: `{name}` is not there")).collect()
}

/// Whether every `path/file.rs::item` in a document must exist.
fn names_items(path: &str) -> bool {
    matches!(path, ARCHITECTURE | GLOSSARY) || path.starts_with("docs/decisions/")
}

fn length(path: &str, text: &str) -> Option<String> {
    let (count, unit, most) = match path {
        ARCHITECTURE => (text.split_whitespace().count(), "words", ARCHITECTURE_WORDS_MAX),
        "README.md" => (text.lines().count(), "lines", README_LINES_MAX),
        GLOSSARY => (text.matches("\n- **").count(), "terms", GLOSSARY_TERMS_MAX),
        _ => return None,
    };
    (count > most).then(|| format!("{path}: {count} {unit}, more than {most}"))
}

/// Returns complaints about links to files, folders or headings that do not exist. `leads` decides
/// whether a path and an anchor, which may be empty, exist.
fn dead_links(document: &SourceFile, leads: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in prose(&document.text) {
        for target in links(line) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let resolved = match path {
                "" => Some(document.path.clone()),
                _ => resolve(&document.path, path),
            };
            if !resolved.is_some_and(|path| leads(&path, anchor)) {
                complaints.push(format!("{}:{number}: no {target}", document.path));
            }
        }
    }
    complaints
}

/// Returns the anchors of a document's headings, as GitHub generates them.
fn anchors(text: &str) -> BTreeSet<String> {
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    let headings = prose(text).filter_map(|(_, line)| line.strip_prefix('#'));
    headings.map(|heading| anchor(heading.trim_start_matches('#').trim())).collect()
}

/// Returns the lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((index + 1, line))
    })
}

/// Returns the targets of the links and images in a line, without URLs.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
}

/// Resolves a relative path in a document from the root of the checkout; `None` if it is outside.
fn resolve(document: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns complaints about items in the form `path/file.rs::item` that do not exist.
fn unknown_items(document: &SourceFile, index: &ItemIndex<'_>) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for (number, line) in prose(&document.text) {
        for span in line.split('`').skip(1).step_by(2) {
            if let Some((path, item)) = reference(span)
                && let Some(problem) = index.problem(path, item)?
            {
                complaints.push(format!("{}:{number}: {problem}", document.path));
            }
        }
    }
    Ok(complaints)
}

/// Parses a code span as a Rust file in a folder, and optionally an item in it.
fn reference(span: &str) -> Option<(&str, Option<&str>)> {
    let (path, item) = match span.split_once("::") {
        Some((path, item)) => (path, Some(item)),
        None => (span, None),
    };
    let is_path =
        path.contains('/') && path.ends_with(".rs") && !path.contains(char::is_whitespace);
    is_path.then_some((path, item))
}

/// Text of all Rust files by path. A file is parsed when one of its items is looked up.
struct ItemIndex<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> ItemIndex<'a> {
    fn new(sources: &'a [SourceFile]) -> Self {
        Self(sources.iter().map(|source| (source.path.as_str(), source.text.as_str())).collect())
    }

    /// Returns why a file or an item is not found, and where items of that name are instead.
    fn problem(&self, path: &str, item: Option<&str>) -> Result<Option<String>> {
        let Some(item) = item else {
            return Ok((!self.0.contains_key(path)).then(|| format!("no file {path}")));
        };
        if let Some(text) = self.0.get(path)
            && items_of(path, text)?.contains(item)
        {
            return Ok(None);
        }
        let same = self.places(item, |other| other == item)?;
        let alike = || self.places(item, |other| last_of(other) == last_of(item));
        Ok(Some(match if same.is_empty() { alike()? } else { same } {
            places if places.is_empty() => format!("no {path}::{item}, nor is it elsewhere"),
            places => format!("no {path}::{item}; there is {}", places.join(" and ")),
        }))
    }

    /// Returns the places of accepted items whose last name is that of `item`.
    fn places(&self, item: &str, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let mut places = Vec::new();
        // Only files that contain the name are parsed: all of them would take seconds.
        for (path, text) in self.0.iter().filter(|(_, text)| text.contains(last_of(item))) {
            let items = items_of(path, text)?;
            let wanted = items.iter().filter(|other| is_wanted(other));
            places.extend(wanted.map(|other| format!("{path}::{other}")));
        }
        Ok(places)
    }
}

/// Name of an item without its type.
fn last_of(item: &str) -> &str {
    item.rsplit("::").next().unwrap_or(item)
}

/// Names of the items in a file: `function`, `Type`, `Type::method`, `Enum::Variant`, `CONSTANT`.
fn items_of(path: &str, text: &str) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let file = syn::parse_file(text).with_context(|| path.to_owned())?;
    file.items.iter().for_each(|item| collect(item, &mut names));
    Ok(names)
}

fn collect(item: &Item, names: &mut BTreeSet<String>) {
    let mut add = |name: &dyn ToString| {
        names.insert(name.to_string());
    };
    match item {
        Item::Const(item) => add(&item.ident),
        Item::Enum(item) => {
            add(&item.ident);
            item.variants.iter().for_each(|variant| add(&member(&item.ident, &variant.ident)));
        }
        Item::Fn(item) => add(&item.sig.ident),
        Item::Impl(item) => {
            let Type::Path(of) = &*item.self_ty else { return };
            let Some(of) = of.path.segments.last() else { return };
            for member_item in &item.items {
                match member_item {
                    ImplItem::Const(inner) => add(&member(&of.ident, &inner.ident)),
                    ImplItem::Fn(inner) => add(&member(&of.ident, &inner.sig.ident)),
                    ImplItem::Type(inner) => add(&member(&of.ident, &inner.ident)),
                    _ => {}
                }
            }
        }
        Item::Mod(item) => {
            add(&item.ident);
            let inner = item.content.iter().flat_map(|(_, items)| items);
            inner.for_each(|item| collect(item, names));
        }
        Item::Static(item) => add(&item.ident),
        Item::Struct(item) => {
            add(&item.ident);
            let fields = item.fields.iter().filter_map(|field| field.ident.as_ref());
            fields.for_each(|field| add(&member(&item.ident, field)));
        }
        Item::Trait(item) => {
            add(&item.ident);
            for member_item in &item.items {
                match member_item {
                    TraitItem::Const(inner) => add(&member(&item.ident, &inner.ident)),
                    TraitItem::Fn(inner) => add(&member(&item.ident, &inner.sig.ident)),
                    TraitItem::Type(inner) => add(&member(&item.ident, &inner.ident)),
                    _ => {}
                }
            }
        }
        Item::Type(item) => add(&item.ident),
        Item::Union(item) => add(&item.ident),
        _ => {}
    }
}

fn member(of: &syn::Ident, name: &syn::Ident) -> String {
    format!("{of}::{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn the_documents_of_this_checkout_are_true() {
        let tree = Tree::default();
        let sources = tree.sources().unwrap();
        assert_eq!(complaints(&tree, &sources).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn missing_items_are_reported_with_their_new_place() {
        let sources = [
            file("a/src/b.rs", "fn f() {} struct S { x: u8 } impl<T> S { fn m(&self) {} }"),
            file("a/src/c.rs", "trait T { fn m(&self); } enum E { V } mod n { const C: u8 = 0; }"),
        ];
        let index = ItemIndex::new(&sources);
        let told = |text: &str| unknown_items(&file("docs/glossary.md", text), &index).unwrap();
        let there = "`a/src/b.rs` `a/src/b.rs::f` `a/src/b.rs::S::m` `a/src/b.rs::S::x`\n\
            `a/src/c.rs::T::m` `a/src/c.rs::E::V` `a/src/c.rs::C` `mod.rs` `S::m` `cargo a.rs`";
        assert_eq!(told(there), Vec::<String>::new());
        assert_eq!(told("`a/src/d.rs`"), ["docs/glossary.md:1: no file a/src/d.rs"]);
        let moved = "docs/glossary.md:2: no a/src/c.rs::S::m; there is a/src/b.rs::S::m";
        assert_eq!(told("\n`a/src/c.rs::S::m`"), [moved]);
        let alike = "docs/glossary.md:1: no a/src/b.rs::Q::V; there is a/src/c.rs::E::V";
        assert_eq!(told("`a/src/b.rs::Q::V`"), [alike]);
        let gone = "docs/glossary.md:1: no a/src/b.rs::q, nor is it elsewhere";
        assert_eq!(told("`a/src/b.rs::q`"), [gone]);
    }

    #[test]
    fn the_page_of_the_architecture_names_every_crate() {
        let sources = [file("a/src/lib.rs", ""), file("b/src/main.rs", ""), file("b/src/c.rs", "")];
        assert_eq!(absent_crates("- `a`: x.\n- `b`: y.", &sources), Vec::<String>::new());
        let told = absent_crates("- `a`: x, b.", &sources);
        assert_eq!(told, ["ARCHITECTURE.md: `b` is not there"]);
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let text = "[a](b.md) ![c](../d.svg#e) [f](#g) [h](https://example.org/i) [j](../../k)\n\
            ```\n[l](m.md)\n```\n[n](o.md) [p](b.md#q)";
        let there = [("docs/b.md", ""), ("d.svg", "e"), ("docs/x.md", "g")];
        let told = dead_links(&file("docs/x.md", text), |path, to| there.contains(&(path, to)));
        let expected = ["1: no ../../k", "5: no o.md", "5: no b.md#q"];
        assert_eq!(told, expected.map(|link| format!("docs/x.md:{link}")));
    }

    #[test]
    fn headings_have_the_anchors_of_github() {
        let text = "# One\n```\n# code\n```\n### Two, or not: `feedrail doctor`\n#three";
        assert_eq!(
            anchors(text).into_iter().collect::<Vec<_>>(),
            ["one", "three", "two-or-not-feedrail-doctor"]
        );
    }

    #[test]
    fn introductory_documents_are_short() {
        for (path, part, most) in [
            (ARCHITECTURE, "word ", ARCHITECTURE_WORDS_MAX),
            ("README.md", "a line\n", README_LINES_MAX),
            (GLOSSARY, "\n- **term**: A word.", GLOSSARY_TERMS_MAX),
        ] {
            assert_eq!(length(path, &part.repeat(most)), None);
            assert!(length(path, &part.repeat(most + 1)).is_some());
            assert_eq!(length("docs/other.md", &part.repeat(most + 1)), None);
        }
    }
}
