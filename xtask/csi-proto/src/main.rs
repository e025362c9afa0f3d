//! Writes the code of the messages of the Container Storage Interface from its csi.proto: `cargo xtask csi-proto` runs it.
//!
//! It is a workspace of its own, so that no other build compiles what it needs. Services have no code: nvlane-csi routes their
//! methods by one table.

use std::collections::BTreeSet;
use std::path::Path;

/// The services of nvlane-csi.
const SERVICES: [&str; 3] = ["Identity", "Controller", "Node"];

/// Methods that nvlane-csi does not have.
const LEFT_OUT: [&str; 5] = [
    "ControllerListVolumeHealth",
    "ControllerGetVolumeHealth",
    "ControllerModifyVolume",
    "NodeGetVolumeHealth",
    "NodeGetStorageHealth",
];

fn main() {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let [proto, to] = &words[..] else { panic!("csi-proto CSI.PROTO DIRECTORY") };
    let proto = Path::new(proto);
    let mut set = protox::compile([proto], [proto.parent().expect("a file")]).expect("csi.proto is readable");
    let file = set.file.iter_mut().find(|file| file.package() == "csi.v1").expect("its package is csi.v1");
    // Comments are numbered by position, which is about to change.
    file.source_code_info = None;
    file.extension.clear();
    let mut wanted: BTreeSet<String> = file
        .service
        .iter()
        .filter(|service| SERVICES.contains(&service.name()))
        .flat_map(|service| &service.method)
        .filter(|method| !LEFT_OUT.contains(&method.name()))
        .flat_map(|method| [method.input_type().to_owned(), method.output_type().to_owned()])
        .collect();
    file.service.clear();
    // What these messages have in them.
    loop {
        let count = wanted.len();
        for message in &file.message_type {
            if wanted.contains(&format!(".csi.v1.{}", message.name())) {
                let parts = message.nested_type.iter().chain([message]);
                wanted.extend(parts.flat_map(|part| &part.field).map(|field| field.type_name().to_owned()));
            }
        }
        if wanted.len() == count {
            break;
        }
    }
    file.message_type.retain(|message| wanted.contains(&format!(".csi.v1.{}", message.name())));
    file.enum_type.retain(|kind| wanted.contains(&format!(".csi.v1.{}", kind.name())));
    // Secrets cannot be printed by mistake: their messages have no Debug.
    let has_secrets = file
        .message_type
        .iter()
        .filter(|message| message.field.iter().any(|field| field.name() == "secrets"));
    let secret: Vec<String> = has_secrets.map(|message| format!(".csi.v1.{}", message.name())).collect();
    prost_build::Config::new()
        .btree_map(["."])
        .skip_debug(secret)
        .extern_path(".google.protobuf.Timestamp", "crate::timestamp::Timestamp")
        .out_dir(to)
        .compile_fds(set)
        .expect("code can be written");
}
