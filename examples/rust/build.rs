//! The stubs: buf reads the contract, prost writes the code. Requests can also be turned into JSON values, so
//! that src/rules.rs can look at every field.

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FileDescriptorSet};
use std::{env, fs, io::Result, path::Path, process::Command};

fn main() -> Result<()> {
    let image = Path::new(&env::var("OUT_DIR").unwrap()).join("contract.binpb");
    let mut bytes = Vec::new();
    // Two images after each other are one image with all of their files.
    for folder in ["../../proto", "../proto"] {
        println!("cargo:rerun-if-changed={folder}");
        assert!(
            Command::new("buf").args(["build", folder, "-o"]).arg(&image).status()?.success(),
            "buf build failed"
        );
        bytes.extend(fs::read(&image)?);
    }
    fs::write(&image, &bytes)?;
    let mut stubs = prost_build::Config::new();
    stubs.file_descriptor_set_path(&image).skip_protoc_run();
    let files = FileDescriptorSet::decode(bytes.as_slice())?.file;
    for file in files
        .iter()
        .filter(|file| ["request.proto", "output.proto"].iter().any(|name| file.name().ends_with(name)))
    {
        for message in &file.message_type {
            serialize(&mut stubs, &format!(".{}.{}", file.package(), message.name()), message);
        }
    }
    let names: Vec<_> =
        files.iter().map(|file| file.name()).filter(|name| !name.starts_with("google/protobuf")).collect();
    stubs.compile_protos(&names, &[] as &[&str])
}

/// A field that is not set is no part of the JSON value, nor is a oneof: all of them belong to capabilities.
fn serialize(stubs: &mut prost_build::Config, path: &str, message: &DescriptorProto) {
    stubs.type_attribute(path, "#[derive(serde::Serialize)]");
    for field in &message.field {
        let is_one_message = field.r#type() == Type::Message && field.label() == Label::Optional;
        if field.proto3_optional() || (is_one_message && field.oneof_index.is_none()) {
            let attribute = "#[serde(skip_serializing_if = \"Option::is_none\")]";
            stubs.field_attribute(format!("{path}.{}", field.name()), attribute);
        }
    }
    for oneof in message.oneof_decl.iter().filter(|oneof| !oneof.name().starts_with('_')) {
        stubs.field_attribute(format!("{path}.{}", oneof.name()), "#[serde(skip)]");
    }
}
