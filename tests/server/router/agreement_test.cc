#include "server/router/agreement.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/rpc/transport_options.h"

namespace runahead {
namespace {

TEST(AliasOf, IsTheSameHoweverThePathIsSpelled) {
  for (const char* path : {"/models/Small-1B", "/models/Small-1B/", "/models/Small-1B/.", "/models//Small-1B//",
                           "/models/other/../Small-1B", "Small-1B", "./Small-1B/", "/models/Small-1B.gguf"}) {
    EXPECT_EQ(AliasOf(path), "Small-1B") << path;
  }
  const std::string here = std::filesystem::current_path().filename();
  EXPECT_EQ(AliasOf("."), here);
  EXPECT_EQ(AliasOf("./"), here);
}

TEST(CheckAgreement, NamesEverythingThatDiffers) {
  const ModelInfo model{"tiny", "abc", 100, 320, "", "words", "chats"};
  v1::Capabilities pool;
  pool.set_protocol_version(kProtocolVersion);
  pool.add_roles(v1::WORKER_ROLE_PREFILL);
  pool.set_name("p1");
  pool.set_model_fingerprint("abc");
  pool.set_weights_fingerprint("weights");
  pool.set_tokenizer_fingerprint("words");
  pool.set_chat_template_fingerprint("chats");
  pool.set_context_length(100);
  pool.set_compute_dtype("f32");
  pool.set_kv_dtype("f32");
  pool.set_layers(2);
  pool.set_kv_row_bytes(64);
  pool.set_kv_block_tokens(256);
  pool.set_kv_heads(2);
  pool.set_head_dim(4);
  pool.set_kv_row_order("token-major k|v");
  pool.set_x_form("q16");
  pool.set_x_row_bytes(68);
  const PoolTerms terms = TermsOf(pool);
  v1::Capabilities worker = pool;
  worker.set_device("cuda:0");      // no part of it
  worker.set_build("another one");  // nor this
  EXPECT_TRUE(CheckAgreement({"prefill", "a:1"}, worker, model, "auto", &terms).ok());
  worker.set_protocol_version(kProtocolVersion + 1);
  worker.set_weights_fingerprint("fine-tuned");
  worker.set_tokenizer_fingerprint("other words");
  worker.set_chat_template_fingerprint("other chats");
  worker.set_compute_dtype("bf16");
  worker.set_kv_row_bytes(32);
  worker.set_context_length(50);
  worker.set_kv_block_tokens(128);
  worker.set_kv_heads(1);
  worker.set_head_dim(8);
  worker.set_kv_row_order("head-major");
  worker.set_x_form("f32");
  worker.set_x_row_bytes(128);
  const absl::Status status = CheckAgreement({"decode", "a:1"}, worker, model, "auto", &terms);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      status.message(),
      absl::StrCat(
          "worker p1 does not agree: protocol_version is ", kProtocolVersion + 1, ", wanted ", kProtocolVersion,
          "; it does not have the role decode that the "
          "worker list gives it; tokenizer_fingerprint is other words, wanted words; chat_template_fingerprint is "
          "other "
          "chats, wanted chats; context_length is 50, wanted 100; weights_fingerprint is fine-tuned, wanted weights; "
          "compute_dtype is bf16, wanted f32; "
          "kv_row_bytes is 32, wanted 64; kv_block_tokens is 128, wanted 256; kv_heads is 1, wanted 2; head_dim is 8, "
          "wanted 4; kv_row_order is head-major, wanted token-major k|v; x_form is f32, wanted q16; x_row_bytes is "
          "128, "
          "wanted 68"));
  EXPECT_TRUE(CheckAgreement({"prefill", "a:1"}, pool, model, "auto", nullptr).ok());
  EXPECT_TRUE(CheckAgreement({"prefill", "a:1"}, pool, model, "f32", nullptr).ok());
  EXPECT_EQ(CheckAgreement({"prefill", "a:1"}, pool, model, "bf16", nullptr).message(),
            "worker p1 does not agree: compute_dtype is f32, wanted bf16");
}

}  // namespace
}  // namespace runahead
