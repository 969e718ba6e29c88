//! Generates the manual page feedrail.toml(5) from the example configuration, which has every key.

use std::fmt::Write as _;

const HEAD: &str = "\
.TH feedrail.toml 5
.SH NAME
feedrail.toml \\- configuration of feedrail\\-target(8)
.SH SYNOPSIS
\\fBfeedrail\\-target \\-\\-config \\fIPATH\\fR
.SH DESCRIPTION
A file in TOML. The service reads /etc/feedrail/target.toml, and reads it again when it is told to: \\fBsystemctl reload
feedrail\\-target\\fR. \\fBfeedrail\\-target \\-\\-check\\fR says whether a target would start with it.
.SH KEYS
Each key is shown with a value: of those that may be left out, the one that is taken then.
";

const TAIL: &str = "\
.SH SEE ALSO
feedrail\\-target(8), feedrail\\-target\\-commands(1)
";

/// Returns the manual page for an example configuration whose comments explain its keys.
pub(crate) fn config_page(example: &str) -> String {
    // The first paragraph describes the example file, not a key.
    let keys = example.split_once("\n\n").map_or("", |(_, keys)| keys);
    let mut page = HEAD.to_owned();
    // The elements of a multi-line list are values of the example, and are left out.
    let mut in_list = false;
    for line in keys.lines() {
        if in_list {
            in_list = line.trim() != "]";
            continue;
        }
        let _ = match ConfigLine::parse(line) {
            ConfigLine::Empty => Ok(()),
            ConfigLine::Table(header) => writeln!(page, ".SS {}", roff(header)),
            ConfigLine::Key { key, value, text } => {
                in_list = value == "[";
                let value = if in_list { "[...]" } else { value };
                writeln!(page, ".TP\n\\fB{} = {}\\fR\n{}", roff(key), roff(value), roff(text))
            }
            ConfigLine::More(text) => writeln!(page, "{}", roff(text)),
            ConfigLine::Paragraph(text) => writeln!(page, ".PP\n{}", roff(text)),
        };
    }
    page + TAIL
}

/// Line of the example. A `#` in front of a key or table shows that it may be left out.
enum ConfigLine<'a> {
    Empty,
    Table(&'a str),
    Key {
        key: &'a str,
        value: &'a str,
        text: &'a str,
    },
    /// Continuation of the explanation of the key above.
    More(&'a str),
    Paragraph(&'a str),
}

impl<'a> ConfigLine<'a> {
    fn parse(line: &'a str) -> Self {
        if let Some(text) = line.strip_prefix("# ") {
            return Self::Paragraph(text);
        }
        let line = line.strip_prefix('#').unwrap_or(line);
        if line.starts_with('[') {
            return Self::Table(line);
        }
        if let Some(text) = line.trim_start().strip_prefix("# ") {
            return Self::More(text);
        }
        let Some((key, rest)) = line.split_once(" = ") else { return Self::Empty };
        // No value of the example contains ` # `.
        let (value, text) = rest.split_once(" # ").unwrap_or((rest, ""));
        Self::Key { key: key.trim(), value: value.trim(), text: text.trim() }
    }
}

/// Escapes a text for a roff line of its own.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    match escaped.starts_with(['.', '\'']) {
        true => format!("\\&{escaped}"),
        false => escaped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_explain_keys() {
        let example = "# Title\n\n#a = 1   # one,\n         # and more\n[[t]]\nlist = [ # some\n  \"x = 1\",\n]\n\
                       # On its own.\n#[t.u]\nkey-b = \".x\" # .y\n";
        let page = config_page(example);
        let keys = page.strip_prefix(HEAD).and_then(|rest| rest.strip_suffix(TAIL));
        let expected = ".TP\n\\fBa = 1\\fR\none,\nand more\n.SS [[t]]\n.TP\n\\fBlist = [...]\\fR\nsome\n\
                        .PP\nOn its own.\n.SS [t.u]\n.TP\n\\fBkey\\-b = \".x\"\\fR\n\\&.y\n";
        assert_eq!(keys, Some(expected));
    }
}
