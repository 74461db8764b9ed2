//! G5: the golden table of goodput; any change is a visible diff. Rewrite it with `TAUTLINE_BLESS=1`.

use std::path::Path;

#[test]
fn goodput_is_as_it_was() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/goodput.txt");
    let table = tautline_sim::goodput::table();
    if std::env::var_os("TAUTLINE_BLESS").is_some() {
        std::fs::write(&path, &table).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(golden, table, "goodput changed; if that is meant, rewrite the table with TAUTLINE_BLESS=1");
}
