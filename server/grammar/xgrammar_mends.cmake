# What is mended in xgrammar's sources, in a copy of each file. runahead_mend_xgrammar(LIST) puts the copies in their places
# in the variable LIST.

# In `list`, a variable, a mended copy of `name` takes the file's place. It stops where the file is another one.
function(runahead_mend_xgrammar_file list name)
  set(file ${RUNAHEAD_XGRAMMAR_SOURCES}/cpp/${name})
  file(READ ${file} text)
  while(ARGN)
    list(POP_FRONT ARGN wrong right)
    string(REPLACE "${${wrong}}" "${${right}}" mended "${text}")
    if(mended STREQUAL text)
      message(FATAL_ERROR "${file} is not the one that is mended here")
    endif()
    set(text "${mended}")
  endwhile()
  set(copy ${CMAKE_CURRENT_BINARY_DIR}/mended/${name})
  file(GENERATE OUTPUT ${copy} CONTENT "${text}")
  set(files ${${list}})
  list(REMOVE_ITEM files ${file})
  set(${list} ${files} ${copy} PARENT_SCOPE)
endfunction()

function(runahead_mend_xgrammar list)
  # In 0.2.8 what is optional leads from its begin to its end: where that goes on, as behind "/" [0-9]+, what goes on
  # there is taken without what must come before it, and `a(/[0-9]+)?` has "a7".
  set(optional [[
  if (!ends_.empty()) {
    fsm.AddEpsilonEdge(start_, ends_.front());
  }
  return FSMWithStartEnd(fsm, start_, ends_);
]])
  set(optional_mended [[
  const auto begin = fsm.AddState();
  fsm.AddEpsilonEdge(begin, start_);
  auto ends = ends_;
  ends.push_back(begin);
  return FSMWithStartEnd(fsm, begin, ends);
]])
  # A state that counts how often a rule came has that one edge: whatever else led on from it would do so in the midst of
  # a count, and `a{2}|.{150}` would have any text of up to 150 characters that ends in `aa`.
  set(counting [[
      if (edge.IsExcludeToken()) {
        has_exclude_token[i] = true;
]])
  set(counting_mended [[
      if (edge.IsExcludeToken() || edge.IsRepeatRef()) {
        has_exclude_token[i] = true;
]])
  set(successor [[
    bool is_equiv_successor = false;
]])
  set(successor_mended [[
    bool is_equiv_successor = false;
    const auto counts = [&](int state) {
      const auto& edges = result.GetFsm().GetEdges(state);
      return !edges.empty() && edges[0].IsRepeatRef();
    };
]])
  set(one [[
      if (incoming_distinct_count[i] != 1 || union_find_set.Count(i) || i == result.GetStart()) {
]])
  set(one_mended [[
      if (incoming_distinct_count[i] != 1 || union_find_set.Count(i) || i == result.GetStart() ||
          counts(i)) {
]])
  set(sibling [[
        if (sibling <= i || incoming_distinct_count[sibling] != 1 || sibling == result.GetStart() ||
]])
  set(sibling_mended [[
        if (sibling <= i || incoming_distinct_count[sibling] != 1 || counts(sibling) ||
            sibling == result.GetStart() ||
]])
  # Its work has no bound (grammar_work.h): of states and edges of automata, and of its parser.
  set(automaton [[
#include "fsm.h"
]])
  set(automaton_mended [[
#include "fsm.h"

#include "server/grammar/grammar_work.h"
]])
  set(state [[
  int AddState() {
]])
  set(state_mended [[
  int AddState() {
    ::runahead::SpendGrammarWork();
]])
  set(edge [[
    edges_[from].push_back({min, max, to});
]])
  set(edge_mended [[
    ::runahead::SpendGrammarWork();
    edges_[from].push_back({min, max, to});
]])
  set(rebuild [[
  std::vector<std::vector<FSMEdge>> new_edges(new_num_states);
]])
  set(rebuild_mended [[
  ::runahead::SpendGrammarWork(edges_.size());
  std::vector<std::vector<FSMEdge>> new_edges(new_num_states);
]])
  set(include [[
#include "earley_parser.h"
]])
  set(include_mended [[
#include "earley_parser.h"

#include "server/grammar/grammar_work.h"
]])
  set(look [[
bool RepeatDetector::IsVisited(const ParserState& state) const {
]])
  set(look_mended [[
bool RepeatDetector::IsVisited(const ParserState& state) const {
  ::runahead::SpendGrammarWork();
]])
  set(scan [[
    Scan(state, ch);
]])
  set(scan_mended [[
    ::runahead::SpendGrammarWork();
    Scan(state, ch);
]])
  # Each mask has a parser of its own, which is as large as the form.
  set(parser [[
  PushStateAndExpand(initial_state.has_value() ? *initial_state : RootInitialState());
]])
  set(parser_mended [[
  ::runahead::SpendGrammarWork(grammar_->NumRules() / 8);
  PushStateAndExpand(initial_state.has_value() ? *initial_state : RootInitialState());
]])
  set(flags [[
    flags_cache.resize(fsm.NumStates());
]])
  set(flags_mended [[
    ::runahead::SpendGrammarWork(fsm.NumStates() / 256);
    flags_cache.resize(fsm.NumStates());
]])
  # It makes the masks of all states of a form before anybody needs one, and some forms have thousands that nobody comes
  # to. What takes long is left for MaskOfState, which makes one when it is needed.
  set(ahead [[
    } else {
      add_adaptive_token_mask(state, is_root_rule);
    }
]])
  set(ahead_mended [[
    } else {
      ::runahead::MakeMaskAhead([&] { add_adaptive_token_mask(state, is_root_rule); });
    }
]])
  # The root's masks are made as if nothing came behind it, also where it stands in other rules, or in itself.
  set(root [[
CompiledGrammar GrammarCompilerSub::MultiThreadCompileGrammar(Grammar grammar_unoptimized) {
]])
  set(root_mended [[
static bool IsWholeText(const Grammar& grammar, int32_t rule_id) {
  if (rule_id != grammar->GetRootRuleId()) return false;
  const CompactFSM& fsm = grammar->complete_fsm;
  for (int state = 0; state < fsm.NumStates(); ++state) {
    for (const auto& edge : fsm.GetEdges(state)) {
      if (edge.IsRuleRef() && edge.GetRefRuleId() == rule_id) return false;
      if (edge.IsRepeatRef() && fsm.GetRepeatEdgeInfo(edge.GetAuxIndex()).RuleId() == rule_id) {
        return false;
      }
    }
  }
  return true;
}

CompiledGrammar GrammarCompilerSub::MultiThreadCompileGrammar(Grammar grammar_unoptimized) {
]])
  set(of_rule [[
    auto rule = compiled_grammar_impl->grammar->GetRule(rule_id);
    const auto& rule_fsm = compiled_grammar_impl->grammar->per_rule_fsms[rule_id];
]])
  set(of_rule_mended [[
    auto rule = compiled_grammar_impl->grammar->GetRule(rule_id);
    const bool is_whole_text = IsWholeText(compiled_grammar_impl->grammar, rule_id);
    const auto& rule_fsm = compiled_grammar_impl->grammar->per_rule_fsms[rule_id];
]])
  set(add [[
      add_task_adaptive_token_mask(cur_stack_element, rule_id == root_rule_id);
]])
  set(add_mended [[
      add_task_adaptive_token_mask(cur_stack_element, is_whole_text);
]])
  set(compile [[
CompiledGrammar GrammarCompilerSub::CompileBuiltinJSONGrammar() {
]])
  set(compile_mended [[
std::shared_ptr<const AdaptiveTokenMask> MaskOfState(
    const CompiledGrammar::Impl& form, const ParserState& state
) {
  XGRAMMAR_CHECK(::runahead::masks_of_form != nullptr) << state;
  const ::runahead::MaskStateId id = {
      state.rule_id, state.sequence_id, state.element_id, state.sub_element_id
  };
  if (auto found = ::runahead::masks_of_form->Find(id)) {
    return std::static_pointer_cast<const AdaptiveTokenMask>(found);
  }
  // As they are made ahead.
  const ParserState begin(
      state.rule_id, state.sequence_id, state.element_id, ParserState::kNoPrevInputPos, 0
  );
  const std::unordered_map<int32_t, DynamicBitset> no_tags;
  std::optional<RuleLevelCache> no_cache;
  std::shared_ptr<const AdaptiveTokenMask> made;
  ::runahead::SpendMaskWork([&] {
    GrammarMatcherForTokenMaskCache matcher(
        form.grammar, begin, no_tags, form.tokenizer_info, no_cache
    );
    made = std::make_shared<const AdaptiveTokenMask>(
        matcher.GetAdaptiveTokenMask(IsWholeText(form.grammar, state.rule_id))
    );
  });
  ::runahead::masks_of_form->Keep(id, made, sizeof(*made) + MemorySize(*made));
  return made;
}

CompiledGrammar GrammarCompilerSub::CompileBuiltinJSONGrammar() {
]])
  set(matcher [[
#include "compiled_grammar_impl.h"
]])
  set(matcher_mended [[
#include "compiled_grammar_impl.h"

namespace xgrammar {
std::shared_ptr<const AdaptiveTokenMask> MaskOfState(
    const CompiledGrammar::Impl& form, const ParserState& state
);
}
]])
  set(masks [[
  std::vector<std::pair<ParserState, decltype(adaptive_token_mask_cache.cbegin())>>
      latest_states_with_masks;
]])
  set(masks_mended [[
  std::vector<std::pair<ParserState, std::shared_ptr<const AdaptiveTokenMask>>>
      latest_states_with_masks;
]])
  set(find [[
    XGRAMMAR_CHECK(adaptive_token_mask_it != adaptive_token_mask_cache.end()) << state;
    const auto& adaptive_token_mask = adaptive_token_mask_it->second;
]])
  set(find_mended [[
    const std::shared_ptr<const AdaptiveTokenMask> mask =
        adaptive_token_mask_it != adaptive_token_mask_cache.end()
            ? std::shared_ptr<const AdaptiveTokenMask>(
                  std::shared_ptr<const void>(), &adaptive_token_mask_it->second
              )
            : MaskOfState(*compiled_grammar_.operator->(), state);
    const AdaptiveTokenMask& adaptive_token_mask = *mask;
]])
  set(found [[
    latest_states_with_masks.push_back(std::make_pair(state, adaptive_token_mask_it));
]])
  set(found_mended [[
    latest_states_with_masks.push_back(std::make_pair(state, mask));
]])
  set(use [[
  for (const auto& [state, adaptive_token_mask_it] : latest_states_with_masks) {
    const auto& adaptive_token_mask = adaptive_token_mask_it->second;
]])
  set(use_mended [[
  for (const auto& [state, mask] : latest_states_with_masks) {
    const AdaptiveTokenMask& adaptive_token_mask = *mask;
]])
  # Behind what is repeated more often than a bound, it writes the last ones out, and takes what stands before them for
  # one rule with a count. What tokens of the rule may be is in its mask where those that are written out are as many as
  # a token has characters, so that no token is judged when an answer comes there. Those of a grammar were 128, each a
  # state with a mask; those of an expression were none, and all tokens were judged each time.
  # A character that an expression repeats more often than a bound was one rule with a count, and no mask knew what comes
  # behind one: all tokens of several characters were judged each time an answer came there. The last ones are written
  # out now, and the rule knows that so many follow; the masks of its states know of all tokens that are no longer.
  set(builder [[
#include "fsm_builder.h"
]])
  set(builder_mended [[
#include "fsm_builder.h"

#include "server/grammar/grammar_work.h"
]])
  set(expression [[
/*!
 * \brief Parse a regex string into a RegexIR.
]])
  set(expression_mended [[
RegexIR::Repeat Unrolled(const RegexIR::Leaf& character, int lower, int upper) {
  RegexIR::Repeat repeat;
  repeat.states.push_back(character);
  repeat.lower_bound = lower;
  repeat.upper_bound = upper;
  return repeat;
}

// `character` between `lower` and `upper` times, of which those before the last ones are `rule_id`.
RegexIR::State RepeatedCharacter(
    const RegexIR::Leaf& character, int32_t rule_id, int lower, int upper
) {
  const int last = ::runahead::kWrittenOut;
  const bool has_end = upper != RegexIR::kRepeatNoUpperBound;
  const int least = std::max(lower, last), most = has_end ? upper : least;
  RegexIR::Bracket counted;
  counted.states.push_back(RegexIR::RepeatSubrule{rule_id, least - last, most - last});
  counted.states.push_back(Unrolled(character, last, last));
  if (!has_end) {
    RegexIR::Symbol more;
    more.symbol = RegexIR::RegexSymbol::star;
    more.state.push_back(character);
    counted.states.push_back(std::move(more));
  }
  if (lower >= last) return counted;
  RegexIR::Union both;
  both.states.push_back(Unrolled(character, lower, last - 1));
  both.states.push_back(std::move(counted));
  return both;
}

/*!
 * \brief Parse a regex string into a RegexIR.
]])
  set(large [[
                                 : upper_bound > kLargeRepeatThreshold;
]])
  set(large_mended [[
                                 : upper_bound > kLargeRepeatThreshold;
      const RegexIR::Leaf* character =
          std::get_if<RegexIR::Leaf>(&std::get<RegexIR::State>(atom.item));
      if (character != nullptr && character->regex.empty()) character = nullptr;
      if (character != nullptr && lower_bound == upper_bound) {
        is_large_repeat = upper_bound > ::runahead::kWrittenOut;
      }
]])
  set(repeat [[
        builder->UpdateLookaheadExact(inner_rule_id, true);
        if (upper_bound == RegexIR::kRepeatNoUpperBound) {
]])
  set(repeat_mended [[
        builder->UpdateLookaheadExact(inner_rule_id, true);
        if (character != nullptr) {
          const std::vector<int32_t> behind(
              ::runahead::kWrittenOut, builder->AddRuleRef(inner_rule_id)
          );
          builder->UpdateLookaheadAssertion(inner_rule_id, builder->AddSequence(behind));
          stack.push_back(
              {RepeatedCharacter(*character, inner_rule_id, lower_bound, upper_bound),
               atom.span_begin,
               i + 1}
          );
        } else if (upper_bound == RegexIR::kRepeatNoUpperBound) {
]])
  set(files ${${list}})
  runahead_mend_xgrammar_file(files fsm_builder.cc builder builder_mended expression expression_mended large
                              large_mended repeat repeat_mended)
  runahead_mend_xgrammar_file(files fsm.cc optional optional_mended counting counting_mended successor successor_mended one
                              one_mended sibling sibling_mended automaton automaton_mended state state_mended edge
                              edge_mended rebuild rebuild_mended)
  runahead_mend_xgrammar_file(files earley_parser.cc include include_mended look look_mended scan scan_mended parser
                              parser_mended flags flags_mended)
  runahead_mend_xgrammar_file(files grammar_compiler.cc include include_mended ahead ahead_mended root root_mended
                              of_rule of_rule_mended add add_mended compile compile_mended)
  runahead_mend_xgrammar_file(files grammar_matcher.cc matcher matcher_mended masks masks_mended find find_mended found
                              found_mended use use_mended)
  set(${list} ${files} PARENT_SCOPE)
endfunction()
