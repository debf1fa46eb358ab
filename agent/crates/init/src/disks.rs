//! The machine's virtio or Xen disks. Their driver is inserted, so they exist immediately or not at all.

use std::fs;
use std::path::Path;

/// The first disk, by name, with this serial number.
pub(crate) fn with_serial(block: &Path, serial: &str) -> Option<String> {
    names(block).into_iter().find(|name| has_serial(block, name, serial))
}

/// The first disk, by name, with another serial number or none.
pub(crate) fn without_serial(block: &Path, serial: &str) -> Option<String> {
    names(block).into_iter().find(|name| !has_serial(block, name, serial))
}

fn names(block: &Path) -> Vec<String> {
    let entries = fs::read_dir(block).into_iter().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with("vd") || name.starts_with("xvd"));
    names.sort();
    names
}

fn has_serial(block: &Path, name: &str, serial: &str) -> bool {
    fs::read_to_string(block.join(name).join("serial")).is_ok_and(|text| text.trim_end() == serial)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_virtio_disk_is_chosen_by_its_serial_number_among_other_devices() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["vdb", "loop0", "vda", "sr0", "vdc"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("vda/serial"), "partywall-root\n").unwrap();
        assert_eq!(with_serial(folder.path(), "partywall-root"), Some("vda".into()));
        assert_eq!(without_serial(folder.path(), "partywall-root"), Some("vdb".into()));
        assert_eq!(with_serial(folder.path(), "partywall"), None);
        assert_eq!(without_serial(&folder.path().join("nothing"), "x"), None);
    }
}
