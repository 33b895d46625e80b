package main

import (
	"fmt"
	"math"
	"regexp"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "example.com/engine/gen/enginewire/v1"
)

// Which requests the engine may be given. Paths are those below GenerateRequest.request. The rules of the fields are
// options of theirs in the contract, which descriptors have. This engine has none of the capabilities.

const (
	model          = "hash"
	revision       = 2
	oldestRevision = 1
)

var name = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
var containers = setOf(
	"stop_conditions", "sampling_options", "output_options", "routing", "router_config_override", "agent_context",
)
var otherRoles = setOf("prefill_result", "bootstrap_info")

// check returns a failure that names the field, or nil.
func check(generate *pb.GenerateRequest) error {
	request := generate.Request
	switch {
	case !name.MatchString(generate.RequestId):
		return invalid("request_id", "not 1 to 128 of A-Z a-z 0-9 . _ : -")
	case generate.ClientRevision > revision:
		text := fmt.Sprintf("not served, got %d, allowed 0..%d", generate.ClientRevision, revision)
		mismatch, served := failed("REVISION_MISMATCH", "client_revision", text), fmt.Sprint(revision)
		mismatch.facts = map[string]string{
			"minimum_client_revision": fmt.Sprint(oldestRevision),
			"maximum_client_revision": served,
		}
		return mismatch
	case request == nil:
		return invalid("request", "must be set")
	}
	if err := checkFields("", request.ProtoReflect()); err != nil {
		return err
	}
	stop, count := request.GetStopConditions(), len(request.TokenIds)
	least, room := stop.GetMinTokens(), contextLength-count
	const path = "stop_conditions.min_tokens"
	switch {
	case request.Model != "" && request.Model != model:
		return failed("MODEL_NOT_FOUND", "model", "no such model here")
	case count == 0:
		return invalid("token_ids", "must not be empty")
	case room < 1:
		return failed("CONTEXT_EXCEEDED", "token_ids", fmt.Sprintf("%d of at most %d", count, contextLength-1))
	case stop != nil && stop.MaxTokens != nil && least > *stop.MaxTokens:
		return invalid(path, fmt.Sprintf("above max_tokens, got %d", least))
	case int64(least) > int64(room):
		return failed("CONTEXT_EXCEEDED", path, fmt.Sprintf("got %d, allowed 0..%d", least, room))
	}
	return nil
}

// checkFields looks at every field of message that is set, in the order of the contract.
func checkFields(owner string, message protoreflect.Message) error {
	fields := message.Descriptor().Fields()
	for i := 0; i < fields.Len(); i++ {
		field := fields.Get(i)
		if !message.Has(field) {
			continue
		}
		path, value := owner+string(field.Name()), message.Get(field)
		err := checkFinite(path, field, value)
		switch {
		case otherRoles[path]: // whatever it holds
			err = failed("ROLE_MISMATCH", path, "this engine is AGGREGATED")
		case err != nil:
		case containers[path]:
			err = checkFields(path+".", value.Message())
		default:
			if rule := proto.GetExtension(field.Options(), pb.E_Rule).(*pb.FieldRule); rule != nil {
				err = checkValue(rule, path, value)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkValue(rule *pb.FieldRule, path string, value protoreflect.Value) error {
	size, high, most := sizeOf(value), math.Inf(1), math.Inf(1)
	if rule.Max != nil {
		high = *rule.Max
	}
	if rule.Bound != nil {
		most = float64(*rule.Bound)
	}
	if rule.TokenCount {
		most = vocabSize
	}
	switch {
	case rule.Min != nil && (size < *rule.Min || rule.AboveMin && size == *rule.Min) || size > high:
		return invalid(path, fmt.Sprintf("got %g, allowed %g..%g", size, rule.GetMin(), high))
	case rule.Capability != "" && (rule.Neutral == nil || size != *rule.Neutral):
		return failed("UNSUPPORTED", path, "this engine does not advertise "+rule.Capability)
	case size > most:
		return invalid(path, fmt.Sprintf("got %g, allowed at most %g", size, most))
	}
	if list, isList := value.Interface().(protoreflect.List); isList {
		for i := 0; i < list.Len(); i++ {
			size, text := sizeOf(list.Get(i)), ""
			if rule.TokenIds && size >= vocabSize {
				text = fmt.Sprintf("not in the vocabulary, got %g, allowed 0..%d", size, vocabSize-1)
			} else if rule.MaxEntryBytes != nil && size > float64(*rule.MaxEntryBytes) {
				text = fmt.Sprintf("longer than %d bytes", *rule.MaxEntryBytes)
			}
			if text != "" {
				return invalid(fmt.Sprintf("%s[%d]", path, i), text)
			}
		}
	}
	return nil
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
	case uint32:
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

// checkFinite: no number in the value, however deep, is NaN or an infinity.
func checkFinite(path string, field protoreflect.FieldDescriptor, value protoreflect.Value) error {
	size := sizeOf(value)
	if math.IsNaN(size) || math.IsInf(size, 0) {
		return invalid(path, "must be finite")
	}
	if field.Message() == nil || field.IsMap() {
		return nil
	}
	if !field.IsList() {
		return checkNumbers(path, value.Message())
	}
	for i := 0; i < value.List().Len(); i++ {
		if err := checkNumbers(fmt.Sprintf("%s[%d]", path, i), value.List().Get(i).Message()); err != nil {
			return err
		}
	}
	return nil
}

func checkNumbers(path string, message protoreflect.Message) (err error) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		err = checkFinite(path+"."+string(field.Name()), field, value)
		return err == nil
	})
	return err
}
