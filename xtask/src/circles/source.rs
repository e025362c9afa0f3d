//! The Rust files of one crate: the modules, what each defines and imports, and the names that each file mentions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Maximum length of a chain of imports; a longer one is a circle of re-exports.
const LINK_COUNT_MAX: usize = 8;

/// A file of the crate: its index in [`Source::files`].
pub(crate) type FileIndex = usize;

type ModuleIndex = usize;

/// The files that use each other, with the names that one takes from the other.
pub(crate) type Edges = BTreeMap<(FileIndex, FileIndex), BTreeSet<String>>;

/// The module tree below one crate root.
#[derive(Default)]
pub(crate) struct Source {
    files: Vec<File>,
    modules: Vec<Module>,
    mentions: Vec<Mention>,
}

/// A source file.
pub(crate) struct File {
    /// Path from the top of the repository.
    pub(crate) path: String,
    /// The module's path from the root of the crate.
    pub(crate) modules: Vec<String>,
    /// Explained circles: names of the other files, and the reasons.
    pub(crate) reasons: Vec<(String, String)>,
}

/// A module: a file or a part of one.
struct Module {
    parent: Option<ModuleIndex>,
    file: FileIndex,
    names: Vec<(String, Name)>,
    globs: Vec<Vec<String>>,
}

/// The meaning of a name in its module.
#[derive(Clone)]
enum Name {
    Module(ModuleIndex),
    Item,
    Import(Vec<String>),
}

/// A path that a module uses.
struct Mention {
    module: ModuleIndex,
    path: Vec<String>,
}

/// Returns the text of a file, by its path from the top of the repository.
pub(crate) type ReadFile<'a> = &'a dyn Fn(&Path) -> std::io::Result<String>;

impl Source {
    /// Reads the module tree of the crate root `path`; test modules are left out.
    pub(crate) fn read(read: ReadFile<'_>, path: &Path) -> Result<Self> {
        let mut source = Self::default();
        let children = path.parent().unwrap_or(path).to_owned();
        let text = read(path).with_context(|| format!("cannot read {}", path.display()))?;
        source.add_file(read, (path, &text), &children, None, Vec::new())?;
        Ok(source)
    }

    pub(crate) fn files(&self) -> &[File] {
        &self.files
    }

    fn add_file(
        &mut self,
        read: ReadFile<'_>,
        (path, text): (&Path, &str),
        children: &Path,
        parent: Option<ModuleIndex>,
        modules: Vec<String>,
    ) -> Result<ModuleIndex> {
        let parsed = syn::parse_file(text).with_context(|| format!("{} is not Rust", path.display()))?;
        let file = self.files.len();
        let reasons = text.lines().filter_map(reason).collect();
        self.files.push(File { path: path.to_string_lossy().into_owned(), modules, reasons });
        let module = self.add_module(parent, file);
        let mut reader = Reader { source: self, module, file, outside: Vec::new() };
        parsed.items.iter().for_each(|item| reader.visit_item(item));
        for (parent, name, given) in reader.outside {
            let (path, children) = match given {
                Some(given) => (path.with_file_name(given), children.to_owned()),
                None => (children.join(format!("{name}.rs")), children.join(&name)),
            };
            let modules = [&*self.files[file].modules, std::slice::from_ref(&name)].concat();
            let head = children.join("mod.rs");
            let (path, text) = match read(&path) {
                Ok(text) => (path, text),
                Err(error) => {
                    let text = read(&head).map_err(|_| error);
                    (head, text.with_context(|| format!("cannot read {}", path.display()))?)
                }
            };
            let child = self.add_file(read, (&path, &text), &children, Some(parent), modules)?;
            self.modules[parent].names.push((name, Name::Module(child)));
        }
        Ok(module)
    }

    fn add_module(&mut self, parent: Option<ModuleIndex>, file: FileIndex) -> ModuleIndex {
        self.modules.push(Module { parent, file, names: Vec::new(), globs: Vec::new() });
        self.modules.len() - 1
    }

    /// The edges between the files. A re-export is none: an edge leads to the file that defines the name.
    pub(crate) fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        let mut add = |from: FileIndex, to: FileIndex, name: &str| {
            if from != to {
                edges.entry((from, to)).or_default().insert(name.to_owned());
            }
        };
        for Mention { module, path } in &self.mentions {
            if let Some((file, name)) = self.resolve(*module, path, 0) {
                add(self.modules[*module].file, file, &name);
            }
        }
        edges
    }

    /// The file that defines the name at the end of `path` in `module`, and its name there. `None` for modules and
    /// other crates' names.
    fn resolve(
        &self,
        module: ModuleIndex,
        path: &[String],
        link_count: usize,
    ) -> Option<(FileIndex, String)> {
        let (at, rest) = self.start(module, path, link_count)?;
        let (last, before) = rest.split_last()?;
        let mut at = at;
        for name in before {
            match self.module_named(at, name, link_count) {
                Some(child) => at = child,
                // A type: what follows is one of its items.
                None => return self.item_named(at, name, link_count),
            }
        }
        self.item_named(at, last, link_count)
    }

    /// The module where a path starts, and the rest of the path.
    fn start<'a>(
        &self,
        module: ModuleIndex,
        path: &'a [String],
        link_count: usize,
    ) -> Option<(ModuleIndex, &'a [String])> {
        if link_count > LINK_COUNT_MAX {
            return None;
        }
        let mut at = module;
        let mut rest = path;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => at = 0,
                "super" => at = self.modules[at].parent?,
                "self" => {}
                _ => break,
            }
            rest = after;
        }
        Some((at, rest))
    }

    fn module_named(&self, at: ModuleIndex, name: &str, link_count: usize) -> Option<ModuleIndex> {
        if link_count > LINK_COUNT_MAX {
            return None;
        }
        let module = &self.modules[at];
        let named = module.names.iter().filter(|(other, _)| other == name);
        let own = named.filter_map(|(_, name)| match name {
            Name::Module(child) => Some(*child),
            Name::Item => None,
            Name::Import(path) => self.module_of(at, path, link_count + 1),
        });
        let from_globs = || module.globs.iter().filter_map(|path| self.module_of(at, path, link_count + 1));
        own.map(Some).next().unwrap_or_else(|| {
            from_globs()
                .filter(|glob| *glob != at)
                .find_map(|glob| self.module_named(glob, name, link_count + 1))
        })
    }

    fn module_of(&self, at: ModuleIndex, path: &[String], link_count: usize) -> Option<ModuleIndex> {
        let (at, rest) = self.start(at, path, link_count)?;
        rest.iter().try_fold(at, |at, name| self.module_named(at, name, link_count))
    }

    fn item_named(&self, at: ModuleIndex, name: &str, link_count: usize) -> Option<(FileIndex, String)> {
        if link_count > LINK_COUNT_MAX {
            return None;
        }
        let module = &self.modules[at];
        let named = module.names.iter().filter(|(other, _)| other == name);
        let mut own = named.filter_map(|(_, found)| match found {
            Name::Module(_) => None,
            Name::Item => Some((module.file, name.to_owned())),
            Name::Import(path) => self.resolve(at, path, link_count + 1),
        });
        own.next().or_else(|| {
            let globs = module.globs.iter().filter_map(|path| self.module_of(at, path, link_count + 1));
            globs.filter(|glob| *glob != at).find_map(|glob| self.item_named(glob, name, link_count + 1))
        })
    }
}

/// The file name and the reason of a comment `// circle with FILE: REASON`.
fn reason(line: &str) -> Option<(String, String)> {
    let comment = line.trim_start().strip_prefix("//")?;
    let (file, reason) = comment.trim_start().strip_prefix("circle with ")?.split_once(": ")?;
    Some((file.to_owned(), reason.to_owned()))
}

/// Reads one file into the tree.
struct Reader<'a> {
    source: &'a mut Source,
    module: ModuleIndex,
    file: FileIndex,
    /// Modules in files of their own: the module that declares them, their names, and their `#[path]`.
    outside: Vec<(ModuleIndex, String, Option<String>)>,
}

impl Reader<'_> {
    fn define(&mut self, name: String, what: Name) {
        self.source.modules[self.module].names.push((name, what));
    }

    fn mention(&mut self, path: Vec<String>) {
        self.source.mentions.push(Mention { module: self.module, path });
    }

    fn import(&mut self, tree: &syn::UseTree, before: &[String], is_public: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), is_public),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, before, is_public));
            }
            syn::UseTree::Glob(_) => self.source.modules[self.module].globs.push(before.to_vec()),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let Some(last) = before.last().cloned() else { return };
                self.define(last, Name::Import(before.to_vec()));
            }
            syn::UseTree::Name(name) => {
                self.define(name.ident.to_string(), Name::Import(with(&name.ident)));
                if !is_public {
                    self.mention(with(&name.ident));
                }
            }
            syn::UseTree::Rename(rename) => {
                self.define(rename.rename.to_string(), Name::Import(with(&rename.ident)));
                if !is_public {
                    self.mention(with(&rename.ident));
                }
            }
        }
    }

    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        let mut colon_count = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colon_count != 2 && !path.is_empty() {
                        self.mention(std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colon_count = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => colon_count += 1,
                token => {
                    if !path.is_empty() {
                        self.mention(std::mem::take(&mut path));
                    }
                    colon_count = 0;
                    if let TokenTree::Group(group) = token {
                        self.read_tokens(group.stream());
                    }
                }
            }
        }
        if !path.is_empty() {
            self.mention(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if attributes_of(item).iter().any(is_for_tests) {
            return;
        }
        if let Some(name) = name_of(item) {
            self.define(name, Name::Item);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        match &item.content {
            None => self.outside.push((self.module, name, path_attribute(&item.attrs))),
            Some((_, items)) => {
                let module = self.source.add_module(Some(self.module), self.file);
                self.define(name, Name::Module(module));
                let outer = std::mem::replace(&mut self.module, module);
                items.iter().for_each(|item| self.visit_item(item));
                self.module = outer;
            }
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[], is_public);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Fn(method) => &*method.attrs,
            syn::ImplItem::Const(constant) => &*constant.attrs,
            _ => &[],
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.mention(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.read_tokens(call.tokens.clone());
    }
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return attribute.path().is_ident("test") };
    list.path.is_ident("cfg") && list.tokens.to_string() == "test"
}

fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let syn::Meta::NameValue(value) = &attribute.meta else { return None };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &value.value else { return None };
    Some(text.value())
}

/// A part of an item of one of these kinds; nothing of another.
macro_rules! part {
    ($item:expr, $it:ident => $part:expr, $($kind:ident)*) => {
        match $item {
            $(syn::Item::$kind($it) => $part,)*
            _ => Default::default(),
        }
    };
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    part!(item, it => &it.attrs, Const Enum Fn Impl Macro Mod Static Struct Trait Type Union Use)
}

fn name_of(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Fn(item) => Some(&item.sig.ident),
        syn::Item::Macro(item) => item.ident.as_ref(),
        item => part!(item, it => Some(&it.ident), Const Enum Static Struct Trait Type Union),
    };
    name.map(ToString::to_string)
}
