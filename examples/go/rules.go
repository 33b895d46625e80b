package main

import (
	"fmt"
	"math"
	"regexp"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/enginewire/enginewire/gen/go/enginewire/v1"
)

// Which requests the engine may be given. Paths are those below GenerateRequest.request. A field that no table names
// is a capability this engine does not have.

const (
	model          = "hash"
	revision       = 2
	oldestRevision = 1
)

var (
	name     = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
	infinity = math.Inf(1)
)

// Of a list, a text and bytes the length counts. Lists of numbers are token ids.
var ranges = map[string]struct{ low, high float64 }{
	"token_ids":                              {0, infinity},
	"eos_token_ids":                          {0, 256},
	"stop_conditions.max_tokens":             {1, infinity},
	"stop_conditions.min_tokens":             {0, infinity},
	"stop_conditions.stop_token_ids":         {0, 256},
	"stop_conditions.stop_token_ids_visible": {0, 256},
	"stop_conditions.stop_token_ids_hidden":  {0, 256},
	"sampling_options.n":                     {1, infinity},
	"sampling_options.temperature":           {0, 100},
	"sampling_options.top_p":                 {math.SmallestNonzeroFloat32, 1},
	"sampling_options.top_k":                 {-1, vocabSize},
	"output_options.stream_interval":         {1, infinity},
	"routing.dp_rank":                        {0, 0},
	"annotations":                            {0, 64},
	"extra_args":                             {0, 65536},
}

// Fields of other capabilities, and the value with which they ask for nothing.
var neutral = map[string]float64{
	"sampling_options.n":                  1,
	"sampling_options.best_of":            1,
	"sampling_options.presence_penalty":   0,
	"sampling_options.frequency_penalty":  0,
	"sampling_options.repetition_penalty": 1,
	"sampling_options.min_p":              0,
	"sampling_options.use_beam_search":    0,
	"sampling_options.length_penalty":     1,
	"routing.lora_name":                   0,
	"routing.priority":                    0,
	"routing.priority_jump":               0,
}

var anything = setOf("model", "stop_conditions.ignore_eos", "is_probe", "cache_salt", "bypass_prefix_cache",
	// For routers and callers:
	"mm_routing_info", "mdc_sum", "router_config_override", "migration_link", "router", "agent_context",
	"request_timestamp_ms", "routing.backend_instance_id", "routing.prefill_worker_id", "routing.decode_worker_id",
	"routing.prefill_dp_rank", "routing.expected_output_tokens", "routing.allowed_worker_ids",
	"routing.routing_constraints", "routing.session_control", "routing.routing_key")
var containers = setOf("stop_conditions", "sampling_options", "output_options", "routing")
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
	for i, text := range request.Annotations {
		if len(text) > 1024 {
			return invalid(fmt.Sprintf("annotations[%d]", i), "longer than 1024 bytes")
		}
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
		case err != nil:
		case containers[path]:
			err = checkFields(path+".", value.Message())
		case otherRoles[path]:
			err = failed("ROLE_MISMATCH", path, "this engine is AGGREGATED")
		default:
			err = checkValue(path, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkValue(path string, value protoreflect.Value) error {
	size := sizeOf(value)
	allowed, isRanged := ranges[path]
	if isRanged && (size < allowed.low || size > allowed.high) {
		return invalid(path, fmt.Sprintf("got %g, allowed %g..%g", size, allowed.low, allowed.high))
	}
	if list, isList := value.Interface().(protoreflect.List); isRanged && isList {
		for i := 0; i < list.Len(); i++ {
			if id, isID := list.Get(i).Interface().(uint32); isID && id >= vocabSize {
				text := fmt.Sprintf("not in the vocabulary, got %d, allowed 0..%d", id, vocabSize-1)
				return invalid(fmt.Sprintf("%s[%d]", path, i), text)
			}
		}
	}
	unused, isOptional := neutral[path]
	if isOptional && size == unused || !isOptional && (isRanged || anything[path]) {
		return nil
	}
	return failed("UNSUPPORTED", path, "this engine does not advertise the capability")
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
