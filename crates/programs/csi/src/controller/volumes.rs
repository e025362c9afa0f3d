//! Create, delete, grow and show volumes.

use serde_json::json;
use tonic::Status;

use super::Controller;
use super::parameters::Parameters;
use crate::capability::Use;
use crate::csi_v1::controller_get_volume_response::VolumeStatus;
use crate::csi_v1::validate_volume_capabilities_response::Confirmed;
use crate::csi_v1::volume_content_source::Type as ContentType;
use crate::csi_v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetVolumeRequest,
    ControllerGetVolumeResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume, VolumeContentSource, volume_capability,
};
use crate::name::Id;
use crate::refusal::{invalid, required};
use crate::target::{Kind, Object, Pool, Source};
use crate::topology;

/// Size of a volume if the request names none.
const USUAL_BYTES: u64 = 1 << 30;

/// Size of blocks, if the class of volumes does not say it.
const USUAL_BLOCK_BYTES: u64 = 4096;

/// Limit of a name, by the interface's specification.
const NAME_BYTES_MAX: usize = 128;

/// A range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) required_bytes: u64,
    /// `u64::MAX` without a limit.
    limit_bytes: u64,
}

impl Range {
    fn read(range: Option<&CapacityRange>) -> Result<Self, Status> {
        let range = range.copied().unwrap_or_default();
        let bytes = |field: &str, bytes: i64| {
            u64::try_from(bytes)
                .map_err(|_| invalid(&format!("capacity_range.{field}"), "a size is not negative"))
        };
        let required_bytes = bytes("required_bytes", range.required_bytes)?;
        let limit_bytes = match bytes("limit_bytes", range.limit_bytes)? {
            0 => u64::MAX,
            limit_bytes => limit_bytes,
        };
        match required_bytes <= limit_bytes {
            true => Ok(Self { required_bytes, limit_bytes }),
            false => Err(invalid("capacity_range", "required_bytes is at most limit_bytes")),
        }
    }

    /// The least size in it, in whole blocks, and not below another size.
    fn size(self, block_bytes: u64, at_least: u64) -> Result<u64, Status> {
        let wanted = match self.required_bytes {
            0 if at_least == 0 => USUAL_BYTES.min(self.limit_bytes / block_bytes * block_bytes),
            required_bytes => required_bytes.max(at_least),
        };
        let size =
            wanted.max(1).checked_next_multiple_of(block_bytes).filter(|size| i64::try_from(*size).is_ok());
        let size =
            size.ok_or_else(|| Status::out_of_range("capacity_range.required_bytes: that is too large"))?;
        match size <= self.limit_bytes {
            true => Ok(size),
            false => Err(Status::out_of_range(format!(
                "capacity_range.limit_bytes: the volume has at least {size} bytes, in blocks of {block_bytes}"
            ))),
        }
    }

    fn has(self, size_bytes: u64) -> bool {
        (self.required_bytes..=self.limit_bytes).contains(&size_bytes)
    }
}

impl Controller {
    pub(crate) fn create_volume(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let name = checked_name("name", &request.name)?;
        Use::all_of("volume_capabilities", &request.volume_capabilities)?;
        let range = Range::read(request.capacity_range.as_ref())?;
        let parameters = Parameters::read(&request.parameters)?;
        if let Some(name) = request.mutable_parameters.keys().next() {
            return Err(invalid(&format!("mutable_parameters.{name}"), "no such parameter: there is none"));
        }
        topology::check(&self.topology, request.accessibility_requirements.as_ref())?;
        let source = self.content(request.volume_content_source.as_ref())?;
        let pool = self.pool_for(&parameters, source.as_ref().map(|(id, _)| id))?;
        let id = Id::of_volume(&pool.name, name);
        let _working = self.pending.begin(id.to_string())?;

        let origin = source.as_ref().map(|(_, object)| object);
        let block_bytes = match (origin, parameters.block_bytes) {
            (Some(origin), Some(wanted)) if wanted != origin.block_bytes => {
                let right =
                    format!("the source has blocks of {} bytes, and so has its copy", origin.block_bytes);
                return Err(invalid("parameters.blockBytes", right));
            }
            (Some(origin), _) => origin.block_bytes,
            (None, wanted) => wanted.unwrap_or(USUAL_BLOCK_BYTES),
        };
        let size = range.size(block_bytes, origin.map_or(0, |origin| origin.size_bytes))?;
        let created = match &source {
            Some((from, _)) => {
                let params = json!({ "name": id.to_string(), "source": from.to_string(), "size": size });
                self.target.create("volume_clone", params)?
            }
            None => {
                let params = json!({ "name": id.to_string(), "size": size, "block_bytes": block_bytes });
                self.target.create("volume_create", params)?
            }
        };
        let volume = created.or_else(|there| {
            let wanted = origin.map(|origin| Source { name: origin.name.clone(), uuid: origin.uuid.clone() });
            let is_same = there.kind == Kind::Volume
                && range.has(there.size_bytes)
                && there.block_bytes == block_bytes
                && there.source == wanted;
            is_same.then_some(there).ok_or_else(|| {
                Status::already_exists(format!(
                    "name: {id} is there already, with another size, source or kind"
                ))
            })
        })?;
        let content_source = request.volume_content_source;
        let volume_context = parameters.references.context();
        let volume = Volume { content_source, volume_context, ..self.volume(&volume) };
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }

    pub(crate) fn delete_volume(&self, request: DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        // What cannot be there is gone.
        let Some(id) = self.id("volume_id", &request.volume_id)? else { return Ok(DeleteVolumeResponse {}) };
        let _working = self.pending.begin(id.to_string())?;
        self.target.delete(Kind::Volume, &id)?;
        Ok(DeleteVolumeResponse {})
    }

    pub(crate) fn expand_volume(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        required("volume_id", &request.volume_id, "fast/pvc-1")?;
        if request.capacity_range.is_none() {
            return Err(invalid("capacity_range", "missing: say how large the volume is to be"));
        }
        let range = Range::read(request.capacity_range.as_ref())?;
        let id = self.volume_id("volume_id", &request.volume_id)?;
        let _working = self.pending.begin(id.to_string())?;
        let mut volume = self.volume_of(&id)?;
        let size = range.size(volume.block_bytes, volume.size_bytes)?;
        if size > volume.size_bytes {
            volume = self.target.resize(&id, size)?;
        }
        let capability =
            request.volume_capability.as_ref().and_then(|capability| capability.access_type.as_ref());
        let is_block = matches!(capability, Some(volume_capability::AccessType::Block(_)));
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: signed(volume.size_bytes),
            node_expansion_required: !is_block,
        })
    }

    pub(crate) fn get_volume(
        &self,
        request: ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        let id = self.volume_id("volume_id", &request.volume_id)?;
        let volume = self.volume_of(&id)?;
        let published_node_ids = self.nodes_of(&id)?;
        Ok(ControllerGetVolumeResponse {
            volume: Some(self.volume(&volume)),
            status: Some(VolumeStatus { published_node_ids }),
        })
    }

    pub(crate) fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        let id = self.id("volume_id", &request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(invalid("volume_capabilities", "missing: say how the volume is to be used"));
        }
        let id = id.ok_or_else(|| {
            Status::not_found(format!("volume_id: there is no volume {}", request.volume_id))
        })?;
        self.volume_of(&id)?;
        let possible = Use::all_of("volume_capabilities", &request.volume_capabilities)
            .and_then(|()| Parameters::read(&request.parameters));
        Ok(match possible {
            Ok(_) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: request.mutable_parameters,
                }),
                message: String::new(),
            },
            Err(status) => {
                ValidateVolumeCapabilitiesResponse { confirmed: None, message: status.message().into() }
            }
        })
    }

    pub(crate) fn capacity(&self, request: GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
        if !request.volume_capabilities.is_empty() {
            Use::all_of("volume_capabilities", &request.volume_capabilities)?;
        }
        let parameters = Parameters::read(&request.parameters)?;
        let is_elsewhere =
            request.accessible_topology.is_some_and(|topology| !topology::reaches(&self.topology, &topology));
        let available = match (is_elsewhere, &parameters.pool) {
            (true, _) => 0,
            (false, Some(_)) => self.pool_for(&parameters, None)?.available,
            // Volumes without a named pool go to the first one.
            (false, None) => self.pools()?.first().map_or(0, |pool| pool.available),
        };
        Ok(GetCapacityResponse {
            available_capacity: signed(available),
            maximum_volume_size: Some(signed(available)),
            minimum_volume_size: None,
        })
    }

    /// The volume in an answer.
    pub(super) fn volume(&self, object: &Object) -> Volume {
        Volume {
            capacity_bytes: signed(object.size_bytes),
            volume_id: object.name.clone(),
            volume_context: Default::default(),
            content_source: None,
            accessible_topology: topology::of(&self.topology).into_iter().collect(),
        }
    }

    pub(super) fn volume_of(&self, id: &Id) -> Result<Object, Status> {
        let volume = self.target.find(Kind::Volume, id)?;
        volume.ok_or_else(|| Status::not_found(format!("volume_id: there is no volume {id}")))
    }

    /// What a new volume is a copy of.
    fn content(&self, source: Option<&VolumeContentSource>) -> Result<Option<(Id, Object)>, Status> {
        let Some(source) = source else { return Ok(None) };
        let (kind, field, text) = match &source.r#type {
            Some(ContentType::Snapshot(snapshot)) => (Kind::Snapshot, "snapshot_id", &snapshot.snapshot_id),
            Some(ContentType::Volume(volume)) => (Kind::Volume, "volume_id", &volume.volume_id),
            None => return Err(invalid("volume_content_source", "write a snapshot or a volume")),
        };
        let field = format!("volume_content_source.{field}");
        let id = self.id(&field, text)?;
        let object = id.as_ref().map(|id| self.target.find(kind, id)).transpose()?.flatten();
        match id.zip(object) {
            Some(found) => Ok(Some(found)),
            None => Err(Status::not_found(format!("{field}: there is no {text}"))),
        }
    }

    /// The pool of a new volume: that of its source, or that of its class, or the usual one.
    fn pool_for(&self, parameters: &Parameters, source: Option<&Id>) -> Result<Pool, Status> {
        let pools = self.pools()?;
        let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        let field = "parameters.pool";
        let name = match (source, parameters.pool.as_deref()) {
            (Some(source), Some(pool)) if source.pool != pool => {
                return Err(invalid(
                    field,
                    format_args!("the source is in the pool {}, and so is its copy", source.pool),
                ));
            }
            (Some(source), _) => Some(source.pool.as_str()),
            (None, pool) => pool,
        };
        let found = match name {
            Some(name) => pools.iter().find(|pool| pool.name == name).ok_or_else(|| {
                let hint = match store::nearest(name, names.iter().copied()) {
                    Some(near) => format!(": did you mean {near}?"),
                    None => format!(": there is {}", names.join(", ")),
                };
                invalid(field, format_args!("no pool {name}{hint}"))
            })?,
            None => match pools.as_slice() {
                [] => {
                    let how = "the target has no pool: add one with nvlane ctl pool add NAME --dir DIR";
                    return Err(Status::failed_precondition(how));
                }
                [only] => only,
                [first, ..] if !self.pools.is_empty() => first,
                _ => return Err(invalid(field, format_args!("which one: {}", names.join(", ")))),
            },
        };
        match &found.error {
            Some(why) => Err(Status::unavailable(format!("the pool {}: {why}", found.name))),
            None => Ok(found.clone()),
        }
    }
}

/// A name that Kubernetes gives.
pub(super) fn checked_name<'a>(field: &str, name: &'a str) -> Result<&'a str, Status> {
    let name = required(field, name, "pvc-1")?;
    match name.len() <= NAME_BYTES_MAX {
        true => Ok(name),
        false => Err(invalid(field, format_args!("a name has at most {NAME_BYTES_MAX} bytes"))),
    }
}

/// Sizes of the interface have a sign.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
