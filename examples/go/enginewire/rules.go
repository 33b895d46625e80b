package enginewire

import (
	"fmt"
	"math"
	"regexp"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "example.com/engine/gen/enginewire/v1"
)

var requestID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// Fields that only some roles have; the others refuse them, whatever they hold.
var rolesOf = map[string][]pb.EngineRole{
	"prefill_result": {pb.EngineRole_ENGINE_ROLE_DECODE},
	"bootstrap_info": {pb.EngineRole_ENGINE_ROLE_PREFILL, pb.EngineRole_ENGINE_ROLE_DECODE},
}

// Check says whether an engine that advertises config may be given the request. Paths are those below
// GenerateRequest.request. What a capability asks beyond the rules of its fields is for the engine to check.
func Check(generate *pb.GenerateRequest, config *pb.EngineConfig) error {
	request := generate.Request
	switch {
	case !requestID.MatchString(generate.RequestId):
		return Invalid("request_id", "not 1 to 128 of A-Z a-z 0-9 . _ : -")
	case generate.ClientRevision > revision:
		return &Failure{
			Reason: pb.ErrorReason_ERROR_REASON_REVISION_MISMATCH,
			Field:  "client_revision",
			Text:   fmt.Sprintf("not served, got %d, allowed 0..%d", generate.ClientRevision, revision),
			Facts: map[string]string{
				"minimum_client_revision": fmt.Sprint(oldestRevision),
				"maximum_client_revision": fmt.Sprint(revision),
			},
		}
	case request == nil:
		return Invalid("request", "must be set")
	}
	fields := walk{config}
	if err := fields.message("", request.ProtoReflect()); err != nil {
		return err
	}
	stop, count := request.GetStopConditions(), len(request.TokenIds)
	least, room, limits := stop.GetMinTokens(), roomAfter(count, config), config.Limits
	const path = "stop_conditions.min_tokens"
	switch {
	case !isServed(request.Model, config):
		return &Failure{Reason: pb.ErrorReason_ERROR_REASON_MODEL_NOT_FOUND, Field: "model", Text: "not served here"}
	case count == 0:
		return Invalid("token_ids", "must not be empty")
	case room < 1:
		return tooLong("token_ids", fmt.Sprintf("got %d, allowed below %d", count, config.GetContextLength()))
	case limits != nil && limits.MaxPromptTokens != nil && count > int(*limits.MaxPromptTokens):
		return tooLong("token_ids", fmt.Sprintf("got %d, allowed at most %d", count, *limits.MaxPromptTokens))
	case stop != nil && stop.MaxTokens != nil && least > *stop.MaxTokens:
		return Invalid(path, fmt.Sprintf("above max_tokens, got %d", least))
	case int64(least) > room:
		return tooLong(path, fmt.Sprintf("got %d, allowed 0..%d", least, room))
	}
	return nil
}

// isServed says whether a request may name the model so. Which adapters are loaded is for an engine with that capability
// to know.
func isServed(model string, config *pb.EngineConfig) bool {
	names := append([]string{"", config.Model, config.ServedModelName}, config.Aliases...)
	return contains(names, model) || config.Capabilities.GetLora()
}

// roomAfter is how many tokens the window has left behind a prompt.
func roomAfter(count int, config *pb.EngineConfig) int64 {
	if config.ContextLength == nil {
		return math.MaxUint32
	}
	return int64(*config.ContextLength) - int64(count)
}

func tooLong(field, text string) *Failure {
	return &Failure{Reason: pb.ErrorReason_ERROR_REASON_CONTEXT_EXCEEDED, Field: field, Text: text}
}

// walk looks at the fields of a request.
type walk struct{ config *pb.EngineConfig }

// message looks at every field that is set, in the order of the contract.
func (w walk) message(owner string, message protoreflect.Message) error {
	fields := message.Descriptor().Fields()
	for i := 0; i < fields.Len(); i++ {
		if field := fields.Get(i); message.Has(field) {
			if err := w.field(owner+string(field.Name()), field, message.Get(field)); err != nil {
				return err
			}
		}
	}
	return nil
}

// field holds a field against its rule, which is an option of it in the contract. What no server may accept is refused
// as invalid, whatever the engine advertises.
func (w walk) field(path string, field protoreflect.FieldDescriptor, value protoreflect.Value) error {
	rule, size := ruleOf(field), sizeOf(value)
	least, most := w.rangeOf(field, rule)
	if roles, isBound := rolesOf[path]; isBound && !contains(roles, w.config.Role) {
		return &Failure{Reason: pb.ErrorReason_ERROR_REASON_ROLE_MISMATCH, Field: path, Text: "is for another role"}
	}
	if math.IsNaN(size) || math.IsInf(size, 0) {
		return Invalid(path, "must be finite")
	}
	if size < least || size > most || rule.AboveMin && size == least {
		return Invalid(path, fmt.Sprintf("got %g, allowed %g..%g", size, least, most))
	}
	if err := w.inside(path, field, value, rule); err != nil {
		return err
	}
	if rule.Capability == "" || w.advertises(rule.Capability) || rule.Neutral != nil && size == *rule.Neutral {
		return nil
	}
	text := "this engine does not advertise " + rule.Capability
	return &Failure{Reason: pb.ErrorReason_ERROR_REASON_UNSUPPORTED, Field: path, Text: text}
}

// inside looks at the entries of a list and at the fields of a message.
func (w walk) inside(
	path string, field protoreflect.FieldDescriptor, value protoreflect.Value, rule *pb.FieldRule,
) error {
	isMessage := field.Message() != nil && !field.IsMap()
	if isMessage && !field.IsList() {
		return w.message(path+".", value.Message())
	}
	for i := 0; field.IsList() && i < value.List().Len(); i++ {
		entry := value.List().Get(i)
		switch {
		case isMessage:
			if err := w.message(fmt.Sprintf("%s[%d].", path, i), entry.Message()); err != nil {
				return err
			}
		case rule.TokenIds && entry.Uint() >= uint64(w.config.VocabSize):
			text := fmt.Sprintf("not in the vocabulary, got %d, allowed 0..%d", entry.Uint(), w.config.VocabSize-1)
			return Invalid(fmt.Sprintf("%s[%d]", path, i), text)
		case rule.MaxEntryBytes != nil && len(entry.String()) > int(*rule.MaxEntryBytes):
			return Invalid(fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("longer than %d bytes", *rule.MaxEntryBytes))
		}
	}
	return nil
}

// rangeOf is what a number may be, or the length of anything else.
func (w walk) rangeOf(field protoreflect.FieldDescriptor, rule *pb.FieldRule) (least, most float64) {
	least, most = math.Inf(-1), math.Inf(1)
	if rule.Min != nil {
		least = *rule.Min
	}
	if rule.Max != nil {
		most = *rule.Max
	}
	limits := w.config.Limits.ProtoReflect()
	if limit := limits.Descriptor().Fields().ByName(protoreflect.Name(rule.Limit)); limit != nil && limits.Has(limit) {
		most = float64(limits.Get(limit).Uint())
	} else if rule.Bound != nil {
		most = float64(*rule.Bound)
	}
	if rule.TokenCount {
		most = math.Min(most, float64(w.config.VocabSize))
	}
	if rule.TokenIds && !field.IsList() {
		most = float64(w.config.VocabSize) - 1
	}
	return least, most
}

func (w walk) advertises(capability string) bool {
	capabilities := w.config.Capabilities.ProtoReflect()
	return capabilities.Has(capabilities.Descriptor().Fields().ByName(protoreflect.Name(capability)))
}

func ruleOf(field protoreflect.FieldDescriptor) *pb.FieldRule {
	if rule := proto.GetExtension(field.Options(), pb.E_Rule).(*pb.FieldRule); rule != nil {
		return rule
	}
	return &pb.FieldRule{}
}

// sizeOf is a number, or the length of a list, a text and bytes.
func sizeOf(value protoreflect.Value) float64 {
	switch value := value.Interface().(type) {
	case bool:
		return map[bool]float64{true: 1}[value]
	case float32:
		return float64(value)
	case float64:
		return value
	case int32:
		return float64(value)
	case int64:
		return float64(value)
	case uint32:
		return float64(value)
	case uint64:
		return float64(value)
	case string:
		return float64(len(value))
	case []byte:
		return float64(len(value))
	case protoreflect.List:
		return float64(value.Len())
	}
	return 0
}

func contains[T comparable](entries []T, wanted T) bool {
	for _, entry := range entries {
		if entry == wanted {
			return true
		}
	}
	return false
}
