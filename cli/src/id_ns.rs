//! `feedrail id-ns`: the Identify Namespace data structure (CNS 00h), and properties that only
//! Feedrail's targets report.

use anyhow::Result;
use clap::Args;
use nvme_proto::Nsid;
use nvme_proto::identify::IdentifyNamespace;
use serde_json::{Map, Value, json};

use crate::fields::{Field, decimal, digits, hex, json_object, lines};
use crate::options::{Format, NamespaceArgs, Output};
use crate::output;
use crate::session::Session;

const EXAMPLES: &str = "\
Examples:
  feedrail id-ns -a 192.0.2.10 -n NQN
  feedrail id-ns -a 192.0.2.10 -n NQN --namespace-id 7 -o json";

/// Shows the Identify Namespace data of a namespace, with nvme-cli's field names
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IdNs {
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    output: Output,
}

impl IdNs {
    pub(crate) fn run(&self) -> Result<()> {
        let session = Session::open(&self.namespace.subsystem)?;
        let id = session.identify_namespace(self.namespace.namespace_id)?;
        output::print(&match self.output.output_format {
            Format::Json => output::json(&Value::Object(to_json(&id))),
            Format::Normal => to_text(&id, self.namespace.namespace_id),
        })
    }
}

/// Fields of the structure, in its order.
fn fields(id: &IdentifyNamespace) -> [Field; 35] {
    [
        hex("nsze", &id.nsze),
        hex("ncap", &id.ncap),
        hex("nuse", &id.nuse),
        hex("nsfeat", &id.nsfeat),
        decimal("nlbaf", &id.nlbaf_z),
        hex("flbas", &id.flbas),
        hex("mc", &id.mc),
        hex("dpc", &id.dpc),
        hex("dps", &id.dps),
        hex("nmic", &id.nmic),
        hex("rescap", &id.rescap),
        hex("fpi", &id.fpi),
        hex("dlfeat", &id.dlfeat),
        decimal("nawun", &id.nawun_z),
        decimal("nawupf", &id.nawupf_z),
        decimal("nacwu", &id.nacwu_z),
        decimal("nabsn", &id.nabsn_z),
        decimal("nabo", &id.nabo),
        decimal("nabspf", &id.nabspf_z),
        decimal("noiob", &id.noiob),
        decimal("nvmcap", &id.nvmcap),
        decimal("npwg", &id.npwg_z),
        decimal("npwa", &id.npwa_z),
        decimal("npdg", &id.npdg_z),
        decimal("npda", &id.npda_z),
        decimal("nows", &id.nows_z),
        decimal("mssrl", &id.mssrl),
        decimal("mcl", &id.mcl),
        decimal("msrc", &id.msrc_z),
        decimal("anagrpid", &id.anagrpid),
        hex("nsattr", &id.nsattr),
        decimal("nvmsetid", &id.nvmsetid),
        decimal("endgid", &id.endgid),
        digits("nguid", &id.nguid),
        digits("eui64", &id.eui64),
    ]
}

fn to_json(id: &IdentifyNamespace) -> Map<String, Value> {
    let mut object = json_object(&fields(id));
    let formats = id.lba_formats().iter().map(|format| {
        json!({
            "ms": format.ms.get(),
            "ds": format.lbads,
            "rp": format.rp.rp(),
        })
    });
    object.insert("lbafs".into(), formats.collect());
    if let Some(info) = id.file_info() {
        let mut record = json!({ "length": info.length_bytes(), "name": info.name() });
        if let Some(description) = info.description() {
            record["description"] = description.into();
        }
        object.insert("feedrail".into(), record);
    }
    object
}

fn to_text(id: &IdentifyNamespace, nsid: Nsid) -> String {
    let mut text = format!("NVME Identify Namespace {nsid}:\n");
    text += &lines(&fields(id), 8);
    for (number, format) in id.lba_formats().iter().enumerate() {
        let in_use = if number == id.lba_format_index() { " (in use)" } else { "" };
        text += &format!(
            "lbaf {number:>2} : ms:{:<3} lbads:{:<2} rp:{:#x}{in_use}\n",
            format.ms.get(),
            format.lbads,
            format.rp.rp()
        );
    }
    if let Some(info) = id.file_info() {
        let name = output::printable(info.name());
        text += &format!("feedrail: length:{} name:{name}", info.length_bytes());
        if let Some(description) = info.description() {
            text += &format!(" description:{}", output::printable(description));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use nvme_proto::identify::{FileInfo, Flbas};
    use nvme_proto::{FromZeros, U64};

    use super::*;
    use crate::fields::pattern;

    fn empty() -> IdentifyNamespace {
        IdentifyNamespace::new_zeroed()
    }

    #[test]
    fn every_field_is_shown_from_its_place() {
        let id: IdentifyNamespace = pattern();
        let json = output::json(&Value::Object(to_json(&id)));
        assert_eq!(json, include_str!("../tests/data/id-ns.json"));
        assert_eq!(to_text(&id, Nsid(1)), include_str!("../tests/data/id-ns.txt"));
    }

    #[test]
    fn known_values_come_out() {
        let mut id = empty();
        id.nsze = U64::new(36);
        id.nguid[0] = 0xAB;
        id.lbaf[0].lbads = 9;
        let json = to_json(&id);
        assert_eq!(json["nsze"], 36);
        assert_eq!(json["nguid"], format!("ab{}", "0".repeat(30)));
        assert_eq!(json["lbafs"], json!([{ "ms": 0, "ds": 9, "rp": 0 }]));
        assert!(!json.contains_key("feedrail"));

        let text = to_text(&id, Nsid(1));
        assert!(text.contains("nsze    : 0x24\n"), "{text}");
        assert!(text.contains("lbads:9  rp:0x0 (in use)\n"), "{text}");
    }

    #[test]
    fn the_format_in_use_may_have_six_bits() {
        let mut id = empty();
        id.flbas = Flbas::new().with_index_low(1).with_index_high(3);
        // With 16 formats the high bits have no meaning.
        for (formats_z, index) in [(15, 0x01), (63, 0x31)] {
            id.nlbaf_z = formats_z;
            assert_eq!(id.lba_format_index(), index);
            let text = to_text(&id, Nsid(1));
            let line = text.lines().find(|line| line.ends_with("(in use)")).unwrap();
            assert!(line.starts_with(&format!("lbaf {index:>2} ")), "{line}");
        }
    }

    #[test]
    fn vendor_data_is_shown() {
        let mut id = empty();
        id.set_file_info(&FileInfo::new(18_071, "shard.bin"));
        assert_eq!(to_json(&id)["feedrail"], json!({ "length": 18_071, "name": "shard.bin" }));
        assert!(to_text(&id, Nsid(1)).ends_with("length:18071 name:shard.bin\n"));
        let info = FileInfo::new(1, "a").with_generation(1).with_description("two words");
        id.set_file_info(&info);
        assert_eq!(to_json(&id)["feedrail"]["description"], "two words");
        assert!(to_text(&id, Nsid(1)).ends_with("length:1 name:a description:two words\n"));
    }
}
