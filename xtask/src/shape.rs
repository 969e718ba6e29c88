//! Structure of crates: files per folder, cycles of imports, public items.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use syn::{Item, ItemUse, UseTree, Visibility};

use crate::source::{self, ProductFile, SourceFile, Tree};

/// Path of the recorded sizes of cycles, from the root of the checkout.
const RECORD: &str = "xtask/tidy/circles.txt";

/// Prints the figures of each crate, without tests. Only `use` items count as imports.
pub(crate) fn main(tree: &Tree) -> Result<()> {
    let files = source::product(&tree.sources()?)?;
    for (name, modules) in crates(&files) {
        println!("{name}");
        for (folder, count) in files_by_folder(name, &files) {
            println!("  {folder}: {count} files");
        }
        for circle in circles(&modules.imports()) {
            let names: Vec<_> = circle.iter().map(|path| path.join("::")).collect();
            println!("  circle of {} modules: {}", names.len(), names.join(" "));
        }
        println!("  public items: {}", modules.public().len());
    }
    Ok(())
}

/// Returns complaints about cycles of imports that are larger than recorded. It prints the crates
/// whose cycles are smaller.
pub(crate) fn complaints(tree: &Tree, sources: &[SourceFile]) -> Result<Vec<String>> {
    let files = source::product(sources)?;
    let record = tree.read(RECORD)?;
    let recorded = parse(&record)?;
    let mut complaints = Vec::new();
    for (name, modules) in crates(&files) {
        let sizes = sizes(&circles(&modules.imports()));
        let record = recorded.get(name).map_or(&[][..], Vec::as_slice);
        if grew(&sizes, record) {
            complaints.push(format!(
                "{name}: circles of {sizes:?} modules that import each other, and {record:?} in \
                 circles.txt: `cargo xtask shape` names them"
            ));
        } else if sizes != record {
            eprintln!(
                "{name}: circles of {sizes:?}, so the {record:?} in circles.txt can be lowered"
            );
        }
    }
    Ok(complaints)
}

/// Sizes of cycles, in numbers of modules, the largest first.
fn sizes(circles: &BTreeSet<BTreeSet<ModulePath>>) -> Vec<usize> {
    let mut sizes: Vec<_> = circles.iter().map(BTreeSet::len).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

/// Whether the largest cycle, or the number of modules in cycles, exceeds the record.
fn grew(sizes: &[usize], record: &[usize]) -> bool {
    sizes.first() > record.first() || sizes.iter().sum::<usize>() > record.iter().sum()
}

/// Parses the lines of a record: a crate, and the sizes of its cycles.
fn parse(record: &str) -> Result<BTreeMap<&str, Vec<usize>>> {
    let lines = record.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| parse_line(line).with_context(|| format!("circles.txt: {line}"))).collect()
}

fn parse_line(line: &str) -> Result<(&str, Vec<usize>)> {
    let (name, sizes) = line.split_once(' ').context("a crate and sizes are expected")?;
    Ok((name, sizes.split(' ').map(str::parse).collect::<Result<_, _>>()?))
}

/// Returns the modules of each library, and of each program that is a crate of its own, by folder.
fn crates(files: &[ProductFile]) -> impl Iterator<Item = (&str, Modules<'_>)> {
    let has = |path: &str| files.iter().any(|file| file.path == path);
    files.iter().filter_map(move |root| {
        let (name, file) = root.path.split_once("/src/")?;
        let is_root = file == "lib.rs" || file == "main.rs" && !has(&format!("{name}/src/lib.rs"));
        is_root.then(|| (name, Modules::new(root, files)))
    })
}

fn files_by_folder(name: &str, files: &[ProductFile]) -> BTreeMap<String, usize> {
    let mut folders = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.starts_with(&format!("{name}/src/"))) {
        let (folder, _) = file.path.rsplit_once('/').expect("it is in src");
        *folders.entry(folder.to_owned()).or_default() += 1;
    }
    folders
}

/// Names of the modules from the root of a crate to a module.
type ModulePath = Vec<String>;

/// Modules of a crate, with their items.
struct Modules<'a>(BTreeMap<ModulePath, &'a [Item]>);

impl<'a> Modules<'a> {
    fn new(root: &'a ProductFile, files: &'a [ProductFile]) -> Self {
        let mut modules = Self(BTreeMap::new());
        let folder = source::module_folder(&root.path);
        modules.add(Vec::new(), &root.items, &folder, files);
        modules
    }

    fn add(&mut self, path: ModulePath, items: &'a [Item], folder: &str, files: &'a [ProductFile]) {
        for item in items {
            let Item::Mod(module) = item else { continue };
            let inner = joined(&path, &module.ident.to_string());
            let folder = format!("{folder}/{}", module.ident);
            let names = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
            if let Some((_, items)) = &module.content {
                self.add(inner, items, &folder, files);
            } else if let Some(file) = files.iter().find(|file| names.contains(&file.path)) {
                self.add(inner, &file.items, &folder, files);
            }
        }
        self.0.insert(path, items);
    }

    /// Returns the modules that each module imports from, without its own ancestors and
    /// descendants.
    fn imports(&self) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let mut imports = BTreeMap::new();
        for (module, items) in &self.0 {
            let uses = items.iter().filter_map(as_use);
            let names = uses.flat_map(|item| self.names(module, item));
            let from = names.map(|(_, path)| self.module_of(&path));
            let others = from.filter(|from| !from.starts_with(module) && !module.starts_with(from));
            imports.insert(module.clone(), others.collect());
        }
        imports
    }

    /// Returns the module that defines the item of a path, or imports it from another crate.
    fn module_of(&self, path: &[String]) -> ModulePath {
        let known = (0..=path.len()).rev().find(|&length| self.0.contains_key(&path[..length]));
        let (module, rest) = path.split_at(known.unwrap_or(0));
        let uses = self.0[module].iter().filter_map(as_use);
        let mut names = uses.flat_map(|item| self.names(module, item));
        match names.find(|(name, from)| rest.first() == Some(name) && !path.starts_with(from)) {
            Some((_, from)) => self.module_of(&[&from, &rest[1..]].concat()),
            None => module.to_vec(),
        }
    }

    /// Returns the names that a `use` imports from this crate, each with its path from the root.
    /// `*` stands for all names.
    fn names(&self, module: &[String], item: &ItemUse) -> Vec<(String, ModulePath)> {
        let mut leaves = Vec::new();
        collect_leaves(&item.tree, &mut Vec::new(), &mut leaves);
        let resolve =
            |(name, path): (String, ModulePath)| Some((name, self.resolve(module, &path)?));
        leaves.into_iter().filter_map(resolve).collect()
    }

    /// Resolves a path in a `use` from the root of the crate; `None` if it is in another crate.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<ModulePath> {
        let mut base = module.to_vec();
        let mut rest = path;
        while let [first, others @ ..] = rest {
            match first.as_str() {
                "crate" => base.clear(),
                "super" => drop(base.pop()),
                "self" => {}
                _ => break,
            }
            rest = others;
        }
        let is_explicit = rest.len() < path.len();
        let is_child = rest.first().is_some_and(|name| self.0.contains_key(&joined(&base, name)));
        (is_explicit || is_child).then(|| [&base, rest].concat())
    }

    /// Returns the public items that other crates can name, by the paths of their definitions.
    fn public(&self) -> BTreeSet<ModulePath> {
        let mut public = BTreeSet::new();
        self.add_public(&[], &mut BTreeSet::new(), &mut public);
        public
    }

    fn add_public(
        &self,
        module: &[String],
        seen: &mut BTreeSet<ModulePath>,
        public: &mut BTreeSet<ModulePath>,
    ) {
        let Some(items) = self.0.get(module) else { return };
        if !seen.insert(module.to_vec()) {
            return;
        }
        for item in *items {
            if let Some(name) = public_name(item) {
                let path = joined(module, &name);
                self.add_public(&path, seen, public);
                public.insert(path);
            }
            let exported = as_use(item).filter(|item| is_public(&item.vis));
            for (name, path) in exported.into_iter().flat_map(|item| self.names(module, item)) {
                if name == "*" || self.0.contains_key(&path) {
                    self.add_public(&path, seen, public);
                }
                if name != "*" {
                    public.insert(path);
                }
            }
        }
    }
}

fn joined(path: &[String], name: &str) -> ModulePath {
    [path, &[name.to_owned()]].concat()
}

fn as_use(item: &Item) -> Option<&ItemUse> {
    if let Item::Use(item) = item { Some(item) } else { None }
}

/// Collects each name that a `use` imports, with its path.
fn collect_leaves(tree: &UseTree, path: &mut ModulePath, leaves: &mut Vec<(String, ModulePath)>) {
    match tree {
        UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            collect_leaves(&tree.tree, path, leaves);
            path.pop();
        }
        UseTree::Name(name) => leaves.push((name.ident.to_string(), end(path, &name.ident))),
        UseTree::Rename(name) => leaves.push((name.rename.to_string(), end(path, &name.ident))),
        UseTree::Glob(_) => leaves.push(("*".to_owned(), path.clone())),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| collect_leaves(tree, path, leaves));
        }
    }
}

/// Appends the last name to a path. `self` stands for the path itself.
fn end(path: &[String], name: &syn::Ident) -> ModulePath {
    if name == "self" && !path.is_empty() { path.to_vec() } else { joined(path, &name.to_string()) }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn public_name(item: &Item) -> Option<String> {
    let (visibility, name) = match item {
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Mod(item) => (&item.vis, &item.ident),
        Item::Static(item) => (&item.vis, &item.ident),
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        Item::Union(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    is_public(visibility).then(|| name.to_string())
}

/// Returns the groups of modules that import each other, directly or through others of the group.
fn circles(imports: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> BTreeSet<BTreeSet<ModulePath>> {
    let reach = |start: &ModulePath| {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&ModulePath> = imports[start].iter().collect();
        while let Some(module) = next.pop() {
            if reached.insert(module.clone()) {
                next.extend(&imports[module]);
            }
        }
        reached
    };
    let reached: BTreeMap<_, _> = imports.keys().map(|module| (module, reach(module))).collect();
    let circle = |module: &ModulePath| {
        let back = |other: &&ModulePath| reached[*other].contains(module);
        reached[module].iter().filter(back).cloned().collect::<BTreeSet<_>>()
    };
    imports.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> ProductFile {
        ProductFile { path: path.to_owned(), items: syn::parse_file(text).unwrap().items }
    }

    #[test]
    fn circles_may_shrink_and_not_grow() {
        assert!(!grew(&[4, 2], &[4, 2]));
        assert!(!grew(&[3, 3], &[6]), "a circle was divided");
        assert!(!grew(&[], &[2]));
        assert!(grew(&[2], &[]));
        assert!(grew(&[4, 4], &[4, 2]));
        assert!(grew(&[5], &[4, 2]), "two circles were joined");
    }

    #[test]
    fn the_record_is_readable() {
        assert_eq!(parse("# text\n\na 3 2\n").unwrap(), BTreeMap::from([("a", vec![3, 2])]));
        assert!(parse("a\n").is_err());
        assert!(parse("a three\n").is_err());
        assert!(parse(include_str!("../tidy/circles.txt")).is_ok());
    }

    #[test]
    fn circles_and_public_items_are_found() {
        let files = [
            file("x/src/lib.rs", "pub mod a; mod b; mod c; pub use b::{B, inner::*};"),
            file("x/src/a.rs", "use crate::b::B; pub struct A; pub(crate) struct D;"),
            file("x/src/b/mod.rs", "mod inner; use crate::c::C; pub struct B; pub struct E;"),
            file("x/src/b/inner.rs", "use super::B; pub fn f() {} fn g() {}"),
            file("x/src/c.rs", "use super::B; pub struct C;"),
        ];
        let modules = Modules::new(&files[0], &files);
        let path = |text: &str| text.split("::").map(str::to_owned).collect::<ModulePath>();
        let circle = BTreeSet::from(["b", "c"].map(path));
        assert_eq!(circles(&modules.imports()), BTreeSet::from([circle]));
        let public = ["a", "a::A", "b::B", "b::inner::f"].map(path);
        assert_eq!(modules.public(), BTreeSet::from(public));
    }
}
