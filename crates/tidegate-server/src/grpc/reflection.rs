//! The reflection service of gRPC: tools such as grpcurl ask it what there is to call.

use std::sync::Arc;

use prost_types::FileDescriptorSet;
use tonic_reflection::server::Builder;

use super::{Service, Tonic};

/// The service, in both versions that tools use, over these files.
pub(crate) fn services(files: &FileDescriptorSet) -> Vec<Arc<dyn Service>> {
    let builder = || {
        Builder::configure()
            .register_file_descriptor_set(files.clone())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let known = "descriptors that are written in the source fit together";
    let v1 = builder().build_v1().expect(known);
    let v1alpha = builder().build_v1alpha().expect(known);
    vec![
        Arc::new(Tonic("grpc.reflection.v1.ServerReflection", v1)),
        Arc::new(Tonic("grpc.reflection.v1alpha.ServerReflection", v1alpha)),
    ]
}
