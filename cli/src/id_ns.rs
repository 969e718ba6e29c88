//! `feedrail id-ns`: the Identify Namespace data structure (CNS 00h), and what Feedrail's targets add to it.

use anyhow::Result;
use clap::Args;
use nvme_proto::Nsid;
use nvme_proto::identify::FileInfo;
use serde_json::{Map, Value, json};

use crate::args::{Format, Namespace, Output};
use crate::fields::{Field, decimal, digits, hex, json_object, lines};
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
    namespace: Namespace,
    #[command(flatten)]
    output: Output,
}

impl IdNs {
    pub(crate) fn run(&self) -> Result<()> {
        let session = Session::open(&self.namespace.subsystem)?;
        let data = session.identify_namespace(self.namespace.namespace_id)?;
        let vendor = data.get(VENDOR_OFFSET..).and_then(FileInfo::parse);
        output::print(&match self.output.output_format {
            Format::Json => output::json(&Value::Object(to_json(&data, vendor.as_ref()))),
            Format::Normal => to_text(&data, self.namespace.namespace_id, vendor.as_ref()),
        })
    }
}

/// NVM Command Set Specification 1.0, Identify Namespace data structure.
const FIELDS: [Field; 35] = [
    hex("nsze", 0, 8),
    hex("ncap", 8, 8),
    hex("nuse", 16, 8),
    hex("nsfeat", 24, 1),
    decimal("nlbaf", 25, 1),
    hex("flbas", 26, 1),
    hex("mc", 27, 1),
    hex("dpc", 28, 1),
    hex("dps", 29, 1),
    hex("nmic", 30, 1),
    hex("rescap", 31, 1),
    hex("fpi", 32, 1),
    hex("dlfeat", 33, 1),
    decimal("nawun", 34, 2),
    decimal("nawupf", 36, 2),
    decimal("nacwu", 38, 2),
    decimal("nabsn", 40, 2),
    decimal("nabo", 42, 2),
    decimal("nabspf", 44, 2),
    decimal("noiob", 46, 2),
    decimal("nvmcap", 48, 16),
    decimal("npwg", 64, 2),
    decimal("npwa", 66, 2),
    decimal("npdg", 68, 2),
    decimal("npda", 70, 2),
    decimal("nows", 72, 2),
    decimal("mssrl", 74, 2),
    decimal("mcl", 76, 4),
    decimal("msrc", 80, 1),
    decimal("anagrpid", 92, 4),
    hex("nsattr", 99, 1),
    decimal("nvmsetid", 100, 2),
    decimal("endgid", 102, 2),
    digits("nguid", 104, 16),
    digits("eui64", 120, 8),
];

const NLBAF_OFFSET: usize = 25;
const FLBAS_OFFSET: usize = 26;
const LBA_FORMATS_OFFSET: usize = 128;
const LBA_FORMAT_BYTES: usize = 4;
const LBA_FORMATS_MAX: usize = 64;
const VENDOR_OFFSET: usize = 384;

/// One LBA format descriptor.
struct LbaFormat {
    metadata_bytes: u16,
    data_shift: u8,
    relative_performance: u8,
}

fn to_json(data: &[u8], vendor: Option<&FileInfo<'_>>) -> Map<String, Value> {
    let mut object = json_object(&FIELDS, data);
    let formats = lba_formats(data).map(|format| {
        json!({
            "ms": format.metadata_bytes,
            "ds": format.data_shift,
            "rp": format.relative_performance,
        })
    });
    object.insert("lbafs".into(), formats.collect());
    if let Some(vendor) = vendor {
        object.insert(
            "feedrail".into(),
            json!({ "length": vendor.length_bytes(), "name": vendor.name() }),
        );
    }
    object
}

fn to_text(data: &[u8], nsid: Nsid, vendor: Option<&FileInfo<'_>>) -> String {
    let mut text = format!("NVME Identify Namespace {nsid}:\n");
    text += &lines(&FIELDS, data, 8);
    for (number, format) in lba_formats(data).enumerate() {
        let in_use = if number == format_in_use(data) { " (in use)" } else { "" };
        text += &format!(
            "lbaf {number:>2} : ms:{:<3} lbads:{:<2} rp:{:#x}{in_use}\n",
            format.metadata_bytes, format.data_shift, format.relative_performance
        );
    }
    if let Some(vendor) = vendor {
        let name = output::printable(vendor.name());
        text += &format!("feedrail: length:{} name:{name}\n", vendor.length_bytes());
    }
    text
}

/// The NLBAF + 1 formats that the namespace has.
fn lba_formats(data: &[u8]) -> impl Iterator<Item = LbaFormat> {
    let count = usize::from(data.get(NLBAF_OFFSET).copied().unwrap_or(0)) + 1;
    let descriptors = data.get(LBA_FORMATS_OFFSET..).unwrap_or_default();
    descriptors.chunks_exact(LBA_FORMAT_BYTES).take(count.min(LBA_FORMATS_MAX)).map(|descriptor| {
        LbaFormat {
            metadata_bytes: u16::from_le_bytes([descriptor[0], descriptor[1]]),
            data_shift: descriptor[2],
            relative_performance: descriptor[3] & 3,
        }
    })
}

/// FLBAS holds the low four bits of the format's index in bits 3:0 and the high two in bits 6:5.
fn format_in_use(data: &[u8]) -> usize {
    let flbas = data.get(FLBAS_OFFSET).copied().unwrap_or(0);
    usize::from(flbas & 0xF | flbas >> 1 & 0x30)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Vec<u8> {
        let mut data = vec![0; 4096];
        data[..8].copy_from_slice(&36_u64.to_le_bytes());
        data[104] = 0xAB;
        data[130] = 9;
        data
    }

    #[test]
    fn fields_are_in_order_and_do_not_overlap() {
        for pair in FIELDS.windows(2) {
            assert!(pair[0].range().end <= pair[1].range().start, "{}", pair[1].name());
        }
        assert_eq!(FIELDS.last().unwrap().range().end, LBA_FORMATS_OFFSET);
    }

    #[test]
    fn known_values_come_out() {
        let json = to_json(&data(), None);
        assert_eq!(json["nsze"], 36);
        assert_eq!(json["nguid"], format!("ab{}", "0".repeat(30)));
        assert_eq!(json["lbafs"], json!([{ "ms": 0, "ds": 9, "rp": 0 }]));
        assert!(!json.contains_key("feedrail"));

        let text = to_text(&data(), Nsid(1), None);
        assert!(text.contains("nsze    : 0x24\n"), "{text}");
        assert!(text.contains("lbads:9  rp:0x0 (in use)\n"), "{text}");
    }

    #[test]
    fn the_format_in_use_has_six_bits() {
        let mut data = data();
        data[FLBAS_OFFSET] = 0x61;
        assert_eq!(format_in_use(&data), 0x31);
    }

    #[test]
    fn vendor_data_is_shown() {
        let vendor = FileInfo::new(18_071, "shard.bin");
        let json = to_json(&data(), Some(&vendor));
        assert_eq!(json["feedrail"], json!({ "length": 18_071, "name": "shard.bin" }));
        assert!(
            to_text(&data(), Nsid(1), Some(&vendor)).ends_with("length:18071 name:shard.bin\n")
        );
    }
}
