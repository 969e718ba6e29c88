//! Finds names of public types that are defined in several files.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use syn::{Ident, Item, Visibility};

use crate::source::{ProductFile, SourceFile, product};

/// Names that may have several definitions, each with the reason.
const ALLOWED: &str = include_str!("../../tidy/names-allowed.txt");

/// Returns a complaint for each name that several files define and the list does not allow.
pub(super) fn complaints(sources: &[SourceFile]) -> Result<Vec<String>> {
    let allowed = allowed(ALLOWED)?;
    let mut shared = shared(&product(sources)?);
    shared.retain(|name, _| !allowed.contains(name.as_str()));
    let describe = |(name, places): (&String, &Places)| {
        let places: Vec<_> = places.iter().map(|(path, line)| format!("{path}:{line}")).collect();
        format!("{name}: a type of several files: {}", places.join(" "))
    };
    Ok(shared.iter().map(describe).collect())
}

/// Line of the first definition of a name, by file.
type Places = BTreeMap<String, usize>;

/// Returns the names of types that several files define, with their places.
fn shared(files: &[ProductFile]) -> BTreeMap<String, Places> {
    let mut names: BTreeMap<String, Places> = BTreeMap::new();
    for file in files {
        for name in definitions(&file.items) {
            let places = names.entry(name.to_string()).or_default();
            places.entry(file.path.clone()).or_insert(name.span().start().line);
        }
    }
    names.retain(|_, places| places.len() > 1);
    names
}

/// Returns the names of the public types in a module, and in its inline modules.
fn definitions(items: &[Item]) -> Vec<&Ident> {
    let mut names = Vec::new();
    for item in items {
        let (visibility, name) = match item {
            Item::Struct(item) => (&item.vis, &item.ident),
            Item::Enum(item) => (&item.vis, &item.ident),
            Item::Union(item) => (&item.vis, &item.ident),
            Item::Trait(item) => (&item.vis, &item.ident),
            Item::TraitAlias(item) => (&item.vis, &item.ident),
            Item::Type(item) => (&item.vis, &item.ident),
            Item::Mod(module) => {
                let inner = module.content.as_ref().map(|(_, items)| definitions(items));
                names.extend(inner.unwrap_or_default());
                continue;
            }
            _ => continue,
        };
        if matches!(visibility, Visibility::Public(_)) {
            names.push(name);
        }
    }
    names
}

/// Parses the list of names that may have several definitions.
fn allowed(list: &str) -> Result<BTreeSet<&str>> {
    let mut names = BTreeSet::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(": ") {
            Some((name, reason)) if !reason.trim().is_empty() => names.insert(name),
            _ => bail!("names-allowed.txt: a name without a reason: {line}"),
        };
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> ProductFile {
        ProductFile { path: path.to_owned(), items: syn::parse_file(text).unwrap().items }
    }

    #[test]
    fn types_of_two_files_are_found() {
        let files = [
            file(
                "a.rs",
                "pub struct One;\npub enum Two {}\nfn f() { struct Local; }\nstruct Own;\n",
            ),
            file("b.rs", "mod inner {\n    pub trait One {}\n}\npub struct Local;\nstruct Own;\n"),
            file("c.rs", "pub type Two = u8;\nimpl I for X { type One = u8; }\n"),
        ];
        let at = |places: [(&str, usize); 2]| places.map(|(path, line)| (path.to_owned(), line));
        let one = ("One".to_owned(), at([("a.rs", 1), ("b.rs", 2)]).into());
        let two = ("Two".to_owned(), at([("a.rs", 2), ("c.rs", 1)]).into());
        assert_eq!(shared(&files), BTreeMap::from([one, two]));
    }

    #[test]
    fn one_file_may_define_a_type_twice() {
        let text = "#[cfg(unix)]\npub struct One;\n#[cfg(not(unix))]\npub struct One;\n";
        assert!(shared(&[file("a.rs", text)]).is_empty());
    }

    #[test]
    fn an_exception_has_a_reason() {
        assert_eq!(allowed("# text\n\nA: why\n").unwrap(), BTreeSet::from(["A"]));
        assert!(allowed("A\n").is_err());
        assert!(allowed("A: \n").is_err());
        assert!(allowed(ALLOWED).is_ok());
    }
}
