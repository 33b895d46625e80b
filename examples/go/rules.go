package main

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/enginewire/enginewire/gen/go/enginewire/v1"
)

// Which requests the engine may be given. Rules that are data are tables of paths below GenerateRequest.request.

const (
	model    = "hash"
	revision = 1
)

var (
	name     = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
	infinity = math.Inf(1)
)

var ranges = []struct {
	path       string
	low, high  float64
	isAboveLow bool
}{
	{"stop_conditions.max_tokens", 1, infinity, false},
	{"sampling_options.n", 1, infinity, false},
	{"sampling_options.best_of", 1, infinity, false},
	{"sampling_options.temperature", 0, 100, false},
	{"sampling_options.top_p", 0, 1, true},
	{"sampling_options.top_k", -1, vocabSize, false},
	{"sampling_options.min_p", 0, 1, false},
	{"sampling_options.presence_penalty", -2, 2, false},
	{"sampling_options.frequency_penalty", -2, 2, false},
	{"sampling_options.repetition_penalty", 0, 10, true},
	{"output_options.stream_interval", 1, infinity, false},
	{"routing.dp_rank", 0, 0, false},
}

// Capabilities this engine does not have: refused whenever the field is set …
var gates = []string{
	"multi_modal_data", "mm_processor_kwargs", "resume",
	"stop_conditions.stop", "stop_conditions.max_thinking_tokens",
	"sampling_options.seed", "sampling_options.guided_decoding", "sampling_options.logit_bias",
	"sampling_options.allowed_token_ids", "sampling_options.bad_words_token_ids",
	"sampling_options.include_stop_str_in_output",
	"output_options.logprobs", "output_options.prompt_logprobs", "output_options.logprob_token_ids",
	"output_options.skip_special_tokens", "output_options.formatted_prompt",
	"output_options.return_tokens_as_token_ids",
}

// … or when it is set to anything but the value that asks for nothing. That of a text is its length.
var neutrals = []struct {
	path  string
	value float64
}{
	{"sampling_options.n", 1}, {"sampling_options.best_of", 1},
	{"sampling_options.use_beam_search", 0}, {"sampling_options.length_penalty", 1},
	{"sampling_options.presence_penalty", 0}, {"sampling_options.frequency_penalty", 0},
	{"sampling_options.repetition_penalty", 1}, {"sampling_options.min_p", 0},
	{"routing.lora_name", 0}, {"routing.priority", 0}, {"routing.priority_jump", 0},
}

// check returns a failure that names the field, or nil.
func check(generate *pb.GenerateRequest) error {
	if !name.MatchString(generate.RequestId) {
		return invalid("request_id", "not a valid id, allowed 1 to 128 characters of [A-Za-z0-9._:-]")
	}
	if generate.ClientRevision > revision {
		served := fmt.Sprint(revision)
		facts := map[string]string{"minimum_client_revision": served, "maximum_client_revision": served}
		text := fmt.Sprintf("not served, got %d, allowed %s", generate.ClientRevision, served)
		return &failure{pb.ErrorReason_ERROR_REASON_REVISION_MISMATCH, "client_revision", text, facts}
	}
	request := generate.Request
	if request == nil {
		return invalid("request", "must be set")
	}
	if request.Model != "" && request.Model != model {
		return &failure{reason: pb.ErrorReason_ERROR_REASON_MODEL_NOT_FOUND, field: "model", text: "no such model here"}
	}
	for _, rule := range []func(*pb.PreprocessedRequest) error{
		checkNumbers, checkRole, checkPrompt, checkRanges, checkTokenIds, checkGates, checkLengths, checkBytes,
	} {
		if err := rule(request); err != nil {
			return err
		}
	}
	return nil
}

func checkRole(request *pb.PreprocessedRequest) error {
	for _, field := range []string{"prefill_result", "bootstrap_info"} {
		if !request.IsProbe && at(request, field) != nil {
			return &failure{reason: pb.ErrorReason_ERROR_REASON_ROLE_MISMATCH, field: field, text: "this engine is AGGREGATED"}
		}
	}
	return nil
}

func checkPrompt(request *pb.PreprocessedRequest) error {
	if request.PromptEmbeds != nil {
		return unsupported("prompt_embeds")
	}
	count := len(request.TokenIds)
	if count == 0 {
		return invalid("token_ids", "must not be empty")
	}
	if count >= contextLength {
		text := fmt.Sprintf("exceeds the context, got %d tokens, allowed 1..%d", count, contextLength-1)
		return &failure{reason: pb.ErrorReason_ERROR_REASON_CONTEXT_EXCEEDED, field: "token_ids", text: text}
	}
	return checkIds("token_ids", request.TokenIds, contextLength)
}

func checkIds(path string, ids []uint32, most int) error {
	if len(ids) > most {
		return invalid(path, fmt.Sprintf("too many, got %d, allowed 0..%d", len(ids), most))
	}
	for i, id := range ids {
		if id >= vocabSize {
			text := fmt.Sprintf("not in the vocabulary, got %d, allowed 0..%d", id, vocabSize-1)
			return invalid(fmt.Sprintf("%s[%d]", path, i), text)
		}
	}
	return nil
}

// at is the value of a field as a number, NaN when it is none, or nil when it is unset.
func at(request *pb.PreprocessedRequest, path string) *float64 {
	owner := request.ProtoReflect()
	names := strings.Split(path, ".")
	for _, parent := range names[:len(names)-1] {
		field := owner.Descriptor().Fields().ByName(protoreflect.Name(parent))
		if !owner.Has(field) {
			return nil
		}
		owner = owner.Get(field).Message()
	}
	field := owner.Descriptor().Fields().ByName(protoreflect.Name(names[len(names)-1]))
	if !owner.Has(field) {
		return nil
	}
	number := math.NaN()
	switch value := owner.Get(field).Interface().(type) {
	case float32:
		number = float64(value)
	case float64:
		number = value
	case int32:
		number = float64(value)
	case uint32:
		number = float64(value)
	case string:
		number = float64(len(value))
	case bool:
		number = map[bool]float64{true: 1}[value]
	}
	return &number
}

func checkNumbers(request *pb.PreprocessedRequest) error {
	return checkFinite("", request.ProtoReflect())
}

// checkFinite looks at every floating-point number of every sub-message.
func checkFinite(path string, message protoreflect.Message) (err error) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		here := strings.TrimPrefix(path+"."+string(field.Name()), ".")
		isFloat := field.Kind() == protoreflect.FloatKind || field.Kind() == protoreflect.DoubleKind
		switch {
		case field.Message() != nil && field.IsList():
			for i := 0; i < value.List().Len() && err == nil; i++ {
				err = checkFinite(fmt.Sprintf("%s[%d]", here, i), value.List().Get(i).Message())
			}
		case field.Message() != nil:
			err = checkFinite(here, value.Message())
		case isFloat && (math.IsNaN(value.Float()) || math.IsInf(value.Float(), 0)):
			err = invalid(here, "must be finite")
		}
		return err == nil
	})
	return err
}

func checkRanges(request *pb.PreprocessedRequest) error {
	for _, rule := range ranges {
		value := at(request, rule.path)
		if value != nil && (*value < rule.low || *value > rule.high || (rule.isAboveLow && *value == rule.low)) {
			above := map[bool]string{true: "above "}[rule.isAboveLow]
			return invalid(rule.path, fmt.Sprintf("out of range, got %g, allowed %s%g to %g", *value, above, rule.low, rule.high))
		}
	}
	return nil
}

func checkTokenIds(request *pb.PreprocessedRequest) error {
	stop, sampling := request.GetStopConditions(), request.GetSamplingOptions()
	for i, bias := range sampling.GetLogitBias() {
		if bias.TokenId >= vocabSize {
			return invalid(fmt.Sprintf("sampling_options.logit_bias[%d].token_id", i), "not in the vocabulary")
		}
	}
	for i, word := range sampling.GetBadWordsTokenIds() {
		path := fmt.Sprintf("sampling_options.bad_words_token_ids[%d].token_ids", i)
		if err := checkIds(path, word.TokenIds, 8192); err != nil {
			return err
		}
	}
	for _, list := range []struct {
		path string
		ids  []uint32
		most int
	}{
		{"eos_token_ids", request.EosTokenIds, 256},
		{"stop_conditions.stop_token_ids", stop.GetStopTokenIds(), 256},
		{"stop_conditions.stop_token_ids_visible", stop.GetStopTokenIdsVisible(), 256},
		{"stop_conditions.stop_token_ids_hidden", stop.GetStopTokenIdsHidden(), 256},
		{"sampling_options.allowed_token_ids", sampling.GetAllowedTokenIds(), 65536},
		{"output_options.logprob_token_ids", request.GetOutputOptions().GetLogprobTokenIds(), 256},
	} {
		if err := checkIds(list.path, list.ids, list.most); err != nil {
			return err
		}
	}
	return nil
}

func checkGates(request *pb.PreprocessedRequest) error {
	for _, path := range gates {
		if at(request, path) != nil {
			return unsupported(path)
		}
	}
	for _, neutral := range neutrals {
		if value := at(request, neutral.path); value != nil && *value != neutral.value {
			return unsupported(neutral.path)
		}
	}
	return nil
}

func unsupported(path string) error {
	return &failure{reason: pb.ErrorReason_ERROR_REASON_UNSUPPORTED, field: path, text: "this engine does not advertise the capability"}
}

func checkLengths(request *pb.PreprocessedRequest) error {
	const path = "stop_conditions.min_tokens"
	stop := request.GetStopConditions()
	least := stop.GetMinTokens()
	if stop != nil && stop.MaxTokens != nil && least > *stop.MaxTokens {
		return invalid(path, fmt.Sprintf("above max_tokens, got %d, allowed 0..%d", least, *stop.MaxTokens))
	}
	if room := uint32(contextLength - len(request.TokenIds)); least > room {
		text := fmt.Sprintf("exceeds the context, got %d, allowed 0..%d", least, room)
		return &failure{reason: pb.ErrorReason_ERROR_REASON_CONTEXT_EXCEEDED, field: path, text: text}
	}
	return nil
}

func checkBytes(request *pb.PreprocessedRequest) error {
	if count := len(request.Annotations); count > 64 {
		return invalid("annotations", fmt.Sprintf("too many, got %d, allowed 0..64", count))
	}
	for i, text := range request.Annotations {
		if len(text) > 1024 {
			return invalid(fmt.Sprintf("annotations[%d]", i), "too long, allowed 0..1024 bytes")
		}
	}
	for path, text := range map[string][]byte{
		"extra_args":                   request.ExtraArgs,
		"router_config_override.extra": request.GetRouterConfigOverride().GetExtra(),
		"agent_context.extra":          request.GetAgentContext().GetExtra(),
	} {
		var object map[string]interface{}
		if len(text) > 65536 {
			return invalid(path, "too long, allowed 0..65536 bytes")
		}
		if len(text) > 0 && (json.Unmarshal(text, &object) != nil || depth(object) > 64) {
			return invalid(path, "must be a JSON object of at most 64 levels")
		}
	}
	return nil
}

func depth(value interface{}) int {
	deepest := -1
	switch value := value.(type) {
	case map[string]interface{}:
		deepest = 0
		for _, inner := range value {
			deepest = max(deepest, depth(inner))
		}
	case []interface{}:
		deepest = 0
		for _, inner := range value {
			deepest = max(deepest, depth(inner))
		}
	}
	return deepest + 1
}

func max(a, b int) int {
	if a > b {
		return a
	}
	return b
}
